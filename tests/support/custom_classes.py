"""A caller's own worker and scheduler, which ours must compose with."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.cpu_worker import CPUWorker


class OwnWorker(CPUWorker):
    """A worker with a method of its own."""

    def own_method(self) -> str:
        """Say which classes are in place."""
        return f"{type(self).__name__} {type(self.model_runner).__name__}"


class OwnScheduler(Scheduler):
    """A scheduler that counts its steps."""

    steps = 0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Count a step."""
        OwnScheduler.steps += 1
        return super().schedule(*args, **kwargs)
