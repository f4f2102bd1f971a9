"""Our part of a vLLM worker: set up when its device is, reachable by collective calls."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nnsight_vllm._mailbox import ADDRESS_VARIABLE, Postbox, is_own
from nnsight_vllm.compat.caller import leave_no_files, outlive_interrupts
from nnsight_vllm.compat.runners import adapt_runner
from nnsight_vllm.compat.switch import DEFAULT_BUDGETS, SPARE, options_of

if TYPE_CHECKING:
    from nnsight_vllm._worker.session import WorkerSession
    from nnsight_vllm.compat.model_access import WorkerModel


def wrap_init_device(init_device: Any) -> Any:
    """Wrap `WorkerWrapperBase.init_device` to set up our session in engines that are ours."""

    @functools.wraps(init_device)
    def traced_init_device(self: Any) -> Any:
        result = init_device(self)
        options = options_of(self.vllm_config)
        if options is not None:
            outlive_interrupts()
            leave_no_files()
            install_session(self.worker, self.vllm_config, options)
        return result

    return traced_init_device


def install_session(worker: Any, vllm_config: Any, options: Mapping[str, Any]) -> WorkerSession:
    """Give a worker its session, and make its runner report to it.

    Args:
        worker: vLLM's worker.
        vllm_config: The configuration of its engine.
        options: What the engine's operator asked of us.

    Raises:
        EngineError: The runner is none that we know.
    """
    from nnsight_vllm._worker.session import WorkerSession
    from nnsight_vllm.compat.model_access import WorkerModel

    runner = worker.model_runner
    model = WorkerModel(runner, vllm_config, worker.rank)
    session = WorkerSession(model, _postbox(model), limits_of(options, model))
    adapt_runner(runner, session)
    session.announce()
    worker.nnsight_handshake = session.handshake
    worker.nnsight_collect = session.collect
    worker.nnsight_discard = session.discard
    worker.nnsight_install = session.edits.install
    worker.nnsight_uninstall = session.edits.forget
    worker.compile_or_warm_up_model = _then_freeze(worker.compile_or_warm_up_model)
    return session


def _then_freeze(warm_up: Any) -> Any:
    """Wrap the last thing that a worker does before it serves, to keep what lives by then from the garbage collector.

    Blocks make enough objects for full collections, and one that looks through all of PyTorch stops a worker for 0.4 s.

    Source:
        vLLM 0.27.1, v1/worker/gpu_worker.py, Worker.compile_or_warm_up_model, does the same; cpu_worker.py does not
    """

    @functools.wraps(warm_up)
    def warm_up_and_freeze(*args: Any, **kwargs: Any) -> Any:
        result = warm_up(*args, **kwargs)
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()
        return result

    return warm_up_and_freeze


def limits_of(options: Mapping[str, Any], model: WorkerModel) -> dict[str, int | None]:
    """Return the budgets of a block, which are the same on every rank of equal devices."""
    limits = {name: options.get(name, default) for name, default in DEFAULT_BUDGETS.items()}
    if limits["byte_budget"] == SPARE:
        limits["byte_budget"] = model.spare_bytes
    return limits


def _postbox(model: WorkerModel) -> Postbox | None:
    """Return the way to the caller's mailbox; None where the caller is elsewhere, or this very process."""
    address = os.environ.get(ADDRESS_VARIABLE)
    if not address or is_own(address):
        return None
    postbox = Postbox(address, model.enter_thread)
    return postbox if postbox.reachable else None
