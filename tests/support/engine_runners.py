"""vLLM's model runners as settings in which a test builds its engines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from nnsight_vllm.compat.versions import runs_on_cpu
from v2_on_cpu import v2_runner_on_cpu
from v2_on_cpu.setting import asynchronous_scheduling

# Largest difference to Transformers in float32 on the CPU; attention kernels of a GPU multiply with fewer bits.
TOLERANCE = 1e-4 if runs_on_cpu() else 2e-2


@dataclass(frozen=True)
class EngineRunner:
    """One of vLLM's model runners, and how its steps are scheduled.

    Attributes:
        name: As `--vllm-runner` takes it.
        generation: `"V1"` or `"V2"`.
        asynchronous: Whether each step is scheduled before the tokens of the step before are known.
        ranks: How many ranks share each layer.
    """

    name: str
    generation: str
    asynchronous: bool = False
    ranks: int = 1

    @property
    def keywords(self) -> dict[str, Any]:
        """Keywords of the engine."""
        keywords: dict[str, Any] = {} if self.ranks == 1 else {"tensor_parallel_size": self.ranks}
        if not runs_on_cpu():
            # Several engines share the device, and start and end while another one would measure what is free.
            memory = {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 30}
            keywords |= {"async_scheduling": self.asynchronous, **memory}
        return keywords

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Build engines with this runner while the context is open."""
        with contextlib.ExitStack() as stack:
            if not runs_on_cpu():
                # As vLLM lets its users choose one.
                choice = {"VLLM_USE_V2_MODEL_RUNNER": "1" if self.generation == "V2" else "0"}
                stack.enter_context(mock.patch.dict(os.environ, choice))
            elif self.generation == "V2":
                stack.enter_context(v2_runner_on_cpu(asynchronous=self.asynchronous))
            elif self.asynchronous:
                stack.enter_context(asynchronous_scheduling())
            yield


RUNNERS = {
    runner.name: runner
    for runner in (
        EngineRunner("v1", "V1"),
        EngineRunner("v1-async", "V1", asynchronous=True),
        EngineRunner("v2", "V2"),
        EngineRunner("v2-async", "V2", asynchronous=True),
        EngineRunner("v1-tp2", "V1", ranks=2),
        EngineRunner("v2-tp2", "V2", ranks=2),
    )
}
