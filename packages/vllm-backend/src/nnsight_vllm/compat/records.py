"""The patches of vLLM: their records, their application, and the self-test of every name that we rely on."""

from __future__ import annotations

import dis
import importlib
import inspect
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from nnsight.errors import EngineError
from nnsight.events import PatchRecord
from nnsight_vllm.compat import relied_on
from nnsight_vllm.compat.relied_on import NAMES, Name, Runner
from nnsight_vllm.compat.versions import installed_version, supported_range


def patch_records() -> tuple[PatchRecord, ...]:
    """Return the record of each patch."""
    versions = str(supported_range())
    return tuple(
        PatchRecord(
            target=patch.target,
            why=patch.why,
            source=patch.source,
            versions=versions,
            remove_when=patch.remove_when + (f" (vLLM {patch.remove_from})" if patch.remove_from else ""),
            signature=patch.parameters,
        )
        for patch in relied_on.PATCHES
    )


def num_names() -> int:
    """Return how many names the self-test looks at in the installed release."""
    return len(_wanted(("V1", "V2")))


def missing_seams(runners: Iterable[Runner] = ("V1", "V2")) -> list[str]:
    """Return what vLLM lacks of the names and parameters that we rely on, one sentence each.

    Args:
        runners: The model runners whose names are looked at, beside those that both need.
    """
    return [problem for name in _wanted(tuple(runners)) if (problem := _problem(name)) is not None]


def refuse_missing_seams() -> None:
    """Refuse a vLLM that lacks something that we rely on.

    Raises:
        EngineError: Something is missing; the message names it.
    """
    problems = missing_seams()
    if problems:
        raise EngineError(
            f"this vLLM lacks what nnsight-vllm relies on: {'; '.join(problems)}; install a release in "
            f"{supported_range()} that nobody has changed"
        )


def apply_patches() -> None:
    """Put every patch in place, once per process.

    Raises:
        EngineError: vLLM lacks something that a patch relies on.
    """
    from nnsight_vllm.compat.admission import wrap_collective_rpc, wrap_preprocess_add_request
    from nnsight_vllm.compat.engine_core import wrap_get_scheduler_cls
    from nnsight_vllm.compat.worker import wrap_init_device

    wrappers = (wrap_get_scheduler_cls, wrap_init_device, wrap_preprocess_add_request, wrap_collective_rpc)
    for patch, wrap in zip(relied_on.PATCHES, wrappers, strict=True):
        owner, name = _owner(patch.target)
        current = inspect.getattr_static(owner, name)
        if not _is_ours(current):
            wrapped = wrap(current)
            wrapped.nnsight_original = current
            setattr(owner, name, wrapped)


def patched_targets() -> list[str]:
    """Return the targets that are patched in this process."""
    return [patch.target for patch in relied_on.PATCHES if _is_ours(inspect.getattr_static(*_owner(patch.target)))]


def _is_ours(attribute: Any) -> bool:
    return hasattr(attribute, "nnsight_original")


def _wanted(runners: tuple[Runner, ...]) -> list[Name]:
    release = installed_version() or ""
    return [name for name in (*relied_on.PATCHES, *NAMES) if name.applies_to(release, runners)]


def _owner(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    *parents, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def _problem(wanted: Name) -> str | None:
    """Say what is wrong with a name, or nothing."""
    try:
        owner, name = _owner(wanted.target)
        found = _member(owner, name)
    except (ImportError, AttributeError) as error:
        return f"{wanted.target} is gone ({error})"
    if not wanted.parameters:
        return None
    found = getattr(found, "nnsight_original", found)
    parameters = inspect.signature(inspect.unwrap(found)).parameters
    lost = [parameter for parameter in wanted.parameters if parameter not in parameters]
    return f"{wanted.target} has no parameter {', '.join(lost)}" if lost else None


def _member(owner: Any, name: str) -> Any:
    """Return an attribute of a module or a class, or None for one that exists on instances alone.

    Raises:
        AttributeError: There is none, and no method of the class sets one.
        ImportError: A module lacks it, and has no such submodule.
    """
    if inspect.ismodule(owner):
        # Names of vLLM's root are imported when they are asked for, and static lookup would not see them.
        return getattr(owner, name) if hasattr(owner, name) else importlib.import_module(f"{owner.__name__}.{name}")
    try:
        return inspect.getattr_static(owner, name)
    except AttributeError:
        if not _instances_have(owner, name):
            raise
        return None


def _instances_have(kind: type, name: str) -> bool:
    for base in kind.__mro__:
        if name in base.__dict__.get("__annotations__", ()):
            return True
        for attribute in vars(base).values():
            function = inspect.unwrap(attribute) if isinstance(attribute, FunctionType) else None
            if function is not None and name in function.__code__.co_names:
                instructions = dis.get_instructions(function)
                if any(step.opname == "STORE_ATTR" and step.argval == name for step in instructions):
                    return True
    return False
