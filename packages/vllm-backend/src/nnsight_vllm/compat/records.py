"""Every patch of vLLM as a record, with its self-test and its application."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from nnsight.errors import EngineError
from nnsight.events import PatchRecord

TESTED = ">=0.26,<0.28"

PATCHES = (
    PatchRecord(
        target="vllm.config.scheduler:SchedulerConfig.get_scheduler_cls",
        why="derives our scheduler from whatever class vLLM chose, so that a block can end its request",
        source="vLLM 0.27.1, config/scheduler.py; called by v1/engine/core.py after the plugins were loaded",
        versions=TESTED,
        remove_when="vLLM lets a worker end a request",
        signature=("self",),
    ),
    PatchRecord(
        target="vllm.v1.worker.worker_base:WorkerWrapperBase.init_device",
        why="sets up our session in each worker, whatever worker_cls is",
        source="vLLM 0.27.1, v1/worker/worker_base.py",
        versions=TESTED,
        remove_when="vLLM calls worker extensions at start (0.33 has init_worker_extension)",
        signature=("self",),
    ),
)

# Names that are relied on without being patched: "module:qualified.name" and the parameters that must be there.
SEAMS: dict[str, tuple[str, ...]] = {
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states": ("self", "scheduler_output"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._model_forward": ("self", "input_ids", "positions"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample": ("self", "logits"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.sample_tokens": ("self", "grammar_output"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model": ("self", "scheduler_output"),
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": ("self", "scheduler_output", "model_runner_output"),
    "vllm.v1.core.sched.scheduler:Scheduler._update_request_with_output": ("self", "request", "new_token_ids"),
    "vllm.model_executor.model_loader.utils:initialize_model": ("vllm_config",),
    "vllm.engine.arg_utils:EngineArgs.create_engine_config": ("self",),
}


def missing_seams() -> list[str]:
    """Return what vLLM lacks of the names and parameters that we rely on, one sentence each."""
    wanted = {record.target: record.signature for record in PATCHES} | SEAMS
    return [problem for target, names in wanted.items() if (problem := _problem(target, names)) is not None]


def apply_patches() -> None:
    """Put every patch in place, once per process.

    Raises:
        EngineError: vLLM lacks something that a patch relies on.
    """
    from nnsight_vllm.compat.engine_core import wrap_get_scheduler_cls
    from nnsight_vllm.compat.worker import wrap_init_device

    wrappers = dict(zip([record.target for record in PATCHES], [wrap_get_scheduler_cls, wrap_init_device], strict=True))
    for target, wrap in wrappers.items():
        owner, name = _owner(target)
        current = inspect.getattr_static(owner, name)
        if not _is_ours(current):
            wrapped = wrap(current)
            if not isinstance(wrapped, property):
                wrapped.nnsight_original = current
            setattr(owner, name, wrapped)


def patched_targets() -> list[str]:
    """Return the targets that are patched in this process."""
    return [record.target for record in PATCHES if _is_ours(inspect.getattr_static(*_owner(record.target)))]


def _is_ours(attribute: Any) -> bool:
    function = attribute.fget if isinstance(attribute, property) else attribute
    return hasattr(function, "nnsight_original")


def _owner(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    *parents, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def _problem(target: str, names: tuple[str, ...]) -> str | None:
    try:
        owner, name = _owner(target)
        found = inspect.getattr_static(owner, name)
    except (ImportError, AttributeError) as error:
        return f"{target} is gone ({error})"
    if not names:
        return None
    found = getattr(found, "nnsight_original", found)
    parameters = inspect.signature(inspect.unwrap(found)).parameters
    lost = [parameter for parameter in names if parameter not in parameters]
    return f"{target} has no parameter {', '.join(lost)}" if lost else None


def refuse_missing_seams() -> None:
    """Refuse a vLLM that lacks something that we rely on.

    Raises:
        EngineError: Something is missing; the message names it.
    """
    problems = missing_seams()
    if problems:
        raise EngineError(
            f"this vLLM lacks what nnsight-vllm relies on: {'; '.join(problems)}; install a release in {TESTED}"
        )
