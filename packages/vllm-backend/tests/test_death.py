"""An engine whose process dies under a trace, or in between, says so once and is shut down; Ctrl-C does not harm it.

Nor does it outlive its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nnsight.errors import EngineError
from nnsight.modeling.vllm import VLLM
from nnsight_vllm._transfer import PREFIX, shared_folder

pytestmark = pytest.mark.slow

PROMPT = "w1 w2 w3"
LONG: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 110}
# From the kill to the error, in seconds; a machine that is busy with other things takes its time.
AT_ONCE = 15.0


class Doomed:
    """One engine of a test's own, whose processes it may kill."""

    def __init__(self, checkpoint: Path, mode: str) -> None:
        self.model: Any = VLLM(str(checkpoint), mode=mode, dispatch=True, dtype="float32", max_model_len=128)
        children = psutil.Process().children()
        self.worker = psutil.Process(self.model._engine.workers[0]["process"])
        lineage = {self.worker.pid, *(parent.pid for parent in self.worker.parents())}
        (self.core,) = [child for child in children if child.pid in lineage]
        self.killed_at = 0.0

    def kill(self, which: str) -> None:
        """Kill one process of this engine."""
        self.killed_at = time.monotonic()
        os.kill(getattr(self, which).pid, signal.SIGKILL)

    def assert_is_over(self, error: EngineError) -> None:
        """The error says what died and what to do; nothing is left, and another trace says the same."""
        assert time.monotonic() - self.killed_at < AT_ONCE
        # Where traces follow each other, it may have died between two of them.
        assert "the engine died while it" in str(error) or "the engine is dead: its" in str(error)
        assert f"process {self.core.pid}" in str(error) or f"process {self.worker.pid}" in str(error)
        assert "model.shutdown()" in str(error)
        self.assert_refuses()
        assert not list(shared_folder().glob(f"{PREFIX}{self.worker.pid}-*"))
        began = time.monotonic()
        self.model.shutdown()
        assert time.monotonic() - began < 2 * AT_ONCE
        _, alive = psutil.wait_procs([self.core, self.worker], timeout=AT_ONCE)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]

    def assert_refuses(self) -> None:
        """Another trace on the dead engine is refused at once."""
        model = self.model

        async def trace() -> None:
            with model.trace(PROMPT, **LONG) as tracer:
                model.logits.save()
            await tracer.backend

        with pytest.raises(EngineError, match=r"the engine is dead: .*the next trace starts a new engine"):
            if model._is_asynchronous:
                asyncio.run(trace())
            else:
                with model.trace(PROMPT, **LONG):
                    model.logits.save()


@pytest.fixture
def doomed(request: pytest.FixtureRequest, tiny_qwen3: Path) -> Iterator[Doomed]:
    engine = Doomed(tiny_qwen3, request.param)
    try:
        yield engine
    finally:
        engine.model.shutdown()


def in_a_moment(engine: Doomed, which: str) -> threading.Thread:
    def kill() -> None:
        time.sleep(0.5)
        engine.kill(which)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.parametrize("doomed", ["sync"], indirect=True)
@pytest.mark.parametrize("which", ["core", pytest.param("worker", marks=pytest.mark.full)])
def test_a_process_that_is_killed_under_a_trace_ends_it_with_one_error(doomed: Doomed, which: str) -> None:
    model = doomed.model
    thread = in_a_moment(doomed, which)
    with pytest.raises(EngineError) as raised:
        while True:
            with model.trace(PROMPT, **LONG) as tracer:
                for _ in tracer.iter[:110]:
                    model.model.layers[0].output[0].new_zeros(400_000).save()
    thread.join()
    doomed.assert_is_over(raised.value)


@pytest.mark.parametrize("doomed", ["async"], indirect=True)
@pytest.mark.parametrize("which", [pytest.param("core", marks=pytest.mark.full), "worker"])
def test_a_process_that_is_killed_under_a_stream_ends_it_with_one_error(doomed: Doomed, which: str) -> None:
    model = doomed.model
    thread = in_a_moment(doomed, which)

    async def main() -> None:
        while True:
            with model.trace(PROMPT, **LONG) as tracer:
                for _ in tracer.iter[:110]:
                    model.model.layers[0].output[0].new_zeros(400_000).save()
            await tracer.backend

    with pytest.raises(EngineError) as raised:
        asyncio.run(asyncio.wait_for(main(), 60))
    thread.join()
    doomed.assert_is_over(raised.value)


@pytest.mark.full
@pytest.mark.parametrize("doomed", ["sync", "async"], indirect=True)
@pytest.mark.parametrize("which", ["core", "worker"])
def test_a_process_that_is_killed_while_idle_is_missed_by_the_next_trace(doomed: Doomed, which: str) -> None:
    doomed.kill(which)
    deadline = time.monotonic() + AT_ONCE
    while doomed.model._engine.died is None and time.monotonic() < deadline:
        time.sleep(0.05)
    doomed.assert_refuses()
    assert str(getattr(doomed, which).pid) in doomed.model._engine.died


INTERRUPTED = """
import os, signal, sys, threading, time
from nnsight.modeling.vllm import VLLM

def main():
    model = VLLM(sys.argv[1], dispatch=True, dtype="float32", max_model_len=128)
    group = sys.argv[2] == "group"

    def interrupt():
        time.sleep(1.0)
        os.killpg(os.getpgid(0), signal.SIGINT) if group else os.kill(os.getpid(), signal.SIGINT)

    greedy = dict(temperature=0.0, ignore_eos=True)
    with model:
        model.generate("w1 w2 w3", max_tokens=2, **greedy)
        threading.Thread(target=interrupt).start()
        try:
            while True:
                with model.trace("w1 w2 w3", max_tokens=110, **greedy) as tracer:
                    for _ in tracer.iter[:110]:
                        model.model.layers[0].output
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        left = model.vllm_entrypoint.collective_rpc("nnsight_discard", args=(b"\\x90",))
        with model.trace("w1 w2 w3", max_tokens=2, **greedy):
            shape = tuple(model.logits.shape)
            shape = list(shape).save()
        print("left", int(left[0]), "usable", shape, flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("receiver", ["group", pytest.param("caller", marks=pytest.mark.full)])
def test_an_interrupt_ends_the_trace_and_leaves_the_engine_usable(
    tiny_qwen3: Path, tmp_path: Path, receiver: str
) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, str(script), str(tiny_qwen3), receiver],
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
        check=False,
    )
    # vLLM's log is there too.
    assert "interrupted\nleft 0 usable [1, 512]\n" in done.stdout, done.stdout + done.stderr[-4000:]
    assert done.returncode == 0, done.stderr[-4000:]


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


KILLED = """
import sys
from nnsight.modeling.vllm import VLLM

def main():
    model = VLLM(sys.argv[1], dispatch=True, dtype="float32", max_model_len=128)
    greedy = dict(temperature=0.0, ignore_eos=True)
    model.generate("w1 w2 w3", max_tokens=2, **greedy)
    print("ready", model._engine.workers[0]["process"], flush=True)
    while True:
        with model.trace("w1 w2 w3", max_tokens=110, **greedy) as tracer:
            for _ in tracer.iter[:110]:
                model.model.layers[0].output[0].new_zeros(400_000).save()

if __name__ == "__main__":
    main()
"""


def test_an_engine_ends_with_a_caller_that_is_killed_and_leaves_no_file(tiny_qwen3: Path, tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    # vLLM's log is there too.
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, str(script), str(tiny_qwen3)], stdout=subprocess.PIPE, stderr=log, text=True
        ) as caller,
    ):
        assert caller.stdout is not None
        words = next(words for line in caller.stdout if (words := line.split())[:1] == ["ready"])
        engine = psutil.Process(caller.pid).children(recursive=True)
        assert int(words[1]) in {process.pid for process in engine}
        files = f"{PREFIX}{words[1]}-*"
        deadline = time.monotonic() + AT_ONCE
        while not list(shared_folder().glob(files)) and time.monotonic() < deadline:
            time.sleep(0.001)
        caller.kill()
    deadline = time.monotonic() + AT_ONCE
    # One that has ended, and that nobody waits for, is there yet.
    while any(lives(process) for process in engine) and time.monotonic() < deadline:
        time.sleep(0.05)
    alive = [process for process in engine if lives(process)]
    for process in alive:
        process.kill()
    assert not alive
    assert not list(shared_folder().glob(files))
