"""Skipping a body leaves no trace: debuggers, coverage and other threads go on as before."""

from __future__ import annotations

import bdb
import json
import linecache
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from capture_support import Capture

from nnsight._capture import BodySkipper, find_block
from nnsight.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType


class Deep(Capture):
    """Calls the skipper from different depths."""

    def __init__(self, enter: int, leave: int) -> None:
        self.depths = (enter, leave)

    def __enter__(self) -> Any:
        frame = sys._getframe(1)
        self.block = find_block(frame)
        self._frame = frame
        self._skipper = BodySkipper(frame, self.block)
        self.nested(self.depths[0], self._skipper.start)
        return self

    def __exit__(self, *exc: Any) -> bool:
        self.__dict__.pop("_frame")
        return bool(self.nested(self.depths[1], lambda: self._skipper.finish(*exc)))

    def nested(self, depth: int, function: Any) -> Any:
        return function() if depth == 0 else self.nested(depth - 1, function)


DEPTHS = [(0, 0), (3, 0), (0, 3), (2, 2)]


def lines_seen(function: Callable[[], object]) -> list[int]:
    """The lines of a function, from its first, that a tracing function is told of."""
    code: Any = function.__code__  # type: ignore[attr-defined]
    seen = []

    def local(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            seen.append(frame.f_lineno - code.co_firstlineno)
        return local

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return local if frame.f_code is code else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    return seen


def test_the_tracing_function_is_the_same_after_a_block() -> None:
    before = sys.gettrace()
    with Capture() as block:
        raise AssertionError
    assert sys.gettrace() is before
    assert block.skipped
    frame = sys._getframe()
    assert (frame.f_trace_opcodes, frame.f_trace_lines) == (False, True)


@pytest.mark.parametrize("depths", DEPTHS)
def test_lines_after_a_block_are_traced(depths: tuple[int, int]) -> None:
    def function() -> None:
        x = 1
        with Deep(*depths) as block:
            raise AssertionError
        y = 2
        z = x + y
        del z, block

    seen = lines_seen(function)
    assert seen[:2] == [1, 2]
    assert seen[-3:] == [4, 5, 6]


def test_lines_of_functions_called_after_a_block_are_traced() -> None:
    def called() -> int:
        return 1

    def function() -> None:
        with Capture():
            raise AssertionError
        called()
        called()

    calls = []

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is called.__code__:
            calls.append(event)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    assert calls == ["call", "line", "return"] * 2


def test_a_tracing_function_that_is_set_after_the_first_captures_does_not_disturb() -> None:
    ran: list[int] = []

    def function() -> int:
        x = 1
        for _ in range(3):
            # fmt: off
            with Capture(): ran.append(x)
            # fmt: on
            with Capture() as block:
                ran.append(x)
            assert block.skipped
        return x

    for _ in range(2):
        function()
        lines = lines_seen(function)
        assert lines.count(8) == 3
        assert lines[-1] == 9
        function()
    assert ran == []


def test_a_local_tracing_function_and_its_flags_are_put_back() -> None:
    def local(frame: FrameType, event: str, argument: object) -> Any:
        return local

    before = sys.gettrace()
    frame = sys._getframe()
    sys.settrace(lambda frame, event, argument: None)
    frame.f_trace = local
    frame.f_trace_opcodes = True
    try:
        with Capture() as block:
            raise AssertionError
        kept = (frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines)
    finally:
        frame.f_trace = None
        frame.f_trace_opcodes = False
        sys.settrace(before)
    assert kept == (local, True, True)
    assert block.skipped


class Debugger(bdb.Bdb):
    """Steps over every line of one function, like `next` in pdb."""

    def __init__(self, code: Any) -> None:
        super().__init__()
        self.code = code
        self.lines: list[int] = []

    def user_line(self, frame: FrameType) -> None:
        if frame.f_code is self.code:
            self.lines.append(frame.f_lineno - self.code.co_firstlineno)
            self.set_next(frame)
        else:
            self.set_step()


def test_a_debugger_steps_over_a_block() -> None:
    def function() -> None:
        x = 1
        with Capture() as block:
            raise AssertionError
        assert block.skipped
        x += 1
        with Capture() as block:
            raise AssertionError
        x += 2

    debugger = Debugger(function.__code__)
    before = sys.gettrace()
    try:
        debugger.runcall(function)
    finally:
        sys.settrace(before)
    assert [line for line in debugger.lines if line not in (3, 7)] in (
        [1, 2, 4, 5, 6, 8],
        [1, 2, 2, 4, 5, 6, 6, 8],
    )


def test_a_debugger_that_steps_through_everything_does_not_disturb() -> None:
    def function() -> Any:
        with Capture() as block:
            raise AssertionError
        return block.skipped

    class Stepper(bdb.Bdb):
        def user_line(self, frame: FrameType) -> None:
            self.set_step()

    before = sys.gettrace()
    try:
        assert Stepper().runcall(function) is True
    finally:
        sys.settrace(before)


def test_a_breakpoint_after_a_block_is_hit(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("def function(Capture):\n    with Capture():\n        x = 1\n    y = 2\n    return y\n")
    namespace: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    hits = []

    class Breaker(bdb.Bdb):
        def user_line(self, frame: FrameType) -> None:
            if frame.f_code is namespace["function"].__code__:
                hits.append(frame.f_lineno)
            self.set_continue()

    debugger = Breaker()
    assert debugger.set_break(str(path), 4) is None
    before = sys.gettrace()
    try:
        debugger.runcall(namespace["function"], Capture)
        debugger.runcall(namespace["function"], Capture)
    finally:
        sys.settrace(before)
        debugger.clear_all_breaks()
    assert hits.count(4) == 2


def test_evaluating_a_block_inside_a_tracing_function_is_refused() -> None:
    ran: list[int] = []
    errors: list[BaseException] = []

    def captures() -> None:
        with Capture():
            ran.append(1)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if not errors:
            try:
                captures()
            except CaptureError as error:
                errors.append(error)
        return trace

    def traced() -> None:
        pass

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        traced()
    finally:
        sys.settrace(before)
    assert ran == []
    assert "while a debugger evaluates an expression" in str(errors[0])
    captures()
    assert ran == []


def test_a_body_that_ran_in_place_is_reported() -> None:
    class Interfering(Capture):
        def __enter__(self) -> Any:
            frame = sys._getframe(1)
            self._skipper = BodySkipper(frame, find_block(frame))
            self._skipper.start()
            watch: Any = self._skipper._watch
            watch.stop(frame)
            return self

        def __exit__(self, *exc: Any) -> bool:
            return self._skipper.finish(*exc)

    ran = []
    with pytest.raises(CaptureError, match="ran in place"):
        with Interfering():
            ran.append(1)
    assert ran == [1]


def test_other_exceptions_pass_through() -> None:
    class Failing:
        def __setattr__(self, name: str, value: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with Capture() as Failing().block:
            raise AssertionError
    assert sys.gettrace() is sys.gettrace()
    with Capture() as block:
        raise AssertionError
    assert block.skipped


def test_the_tracing_of_other_threads_is_not_touched() -> None:
    stop = threading.Event()
    lines: list[int] = []
    problems: list[str] = []

    def traced() -> int:
        total = 0
        for number in range(10):
            total += number
        return total

    def local(frame: FrameType, event: str, argument: object) -> Any:
        lines.append(frame.f_lineno)
        return local

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return local if frame.f_code is traced.__code__ else None

    def work() -> None:
        sys.settrace(trace)
        expected = None
        while not stop.is_set():
            lines.clear()
            traced()
            if sys.gettrace() is not trace:
                problems.append("replaced")
            if expected is not None and len(lines) != expected:
                problems.append(f"{len(lines)} lines")
            expected = len(lines)
        sys.settrace(None)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(2000):
        with Capture():
            raise AssertionError
    stop.set()
    thread.join()
    assert problems == []


def test_a_tracing_function_for_new_threads_stays() -> None:
    before = threading.gettrace()
    with Capture():
        raise AssertionError
    assert threading.gettrace() is before


MEASURED = """\
import sys
from test_bodies_are_skipped import Deep


def called():
    x = 1
    return x


def function():
    x = 1
    with Deep(DEPTHS) as block:
        y = called()
        z = y
    x = 2
    y = x + 1
    called()
    for number in range(3):
        with Deep(DEPTHS) as block:
            y = 1
            y = 2
        z = number
    return z


function()
after = 1
with Deep(DEPTHS) as block:
    w = 1
    w = 2
last = 2
"""


@pytest.mark.parametrize("tracer", ["--timid", ""])
@pytest.mark.parametrize("depths", ["0, 0", "3, 0", "0, 3", "2, 2"])
def test_coverage_sees_every_line_after_a_block(
    run_python: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depths: str, tracer: str
) -> None:
    pytest.importorskip("coverage")
    # Where the tests are measured, processes that they start are too.
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    (tmp_path / "measured.py").write_text(MEASURED.replace("DEPTHS", depths))
    # Lines that are not the file's own must neither be missing nor be taken for lines of the file.
    options = ["--rcfile=/dev/null", "--data-file=data"]
    run_python("-m", "coverage", "run", *options, "--include=measured.py", *filter(None, [tracer]), "measured.py")
    report = json.loads(run_python("-m", "coverage", "json", *options, "-q", "-o", "-"))
    # The lines of the bodies did not run here. Where monitoring is used the first of each is seen.
    assert set(report["files"]["measured.py"]["missing_lines"]) - {13, 14, 20, 21, 29, 30} == set()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="has no sys.monitoring")
def test_coverage_through_monitoring_sees_every_line_after_a_block(
    run_python: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVERAGE_CORE", "sysmon")
    test_coverage_sees_every_line_after_a_block(run_python, tmp_path, monkeypatch, "0, 0", "")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="has no sys.monitoring")
@pytest.mark.parametrize("late", [False, True])
def test_a_tool_that_turns_its_events_off_does_not_let_a_body_run(late: bool) -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    names = ["LINE", "INSTRUCTION", "PY_START", "PY_RETURN", "CALL", "JUMP", "BRANCH", "STOP_ITERATION"]
    text = "def function(Capture, ran):\n    for _ in range(3):\n"
    for body in ("        with Capture() as block: ran.append(1)\n",) * 2 + (
        "        with Capture() as block:\n            ran.append(1)\n",
        "        with Capture():\n            for x in ran: ran.append(2)\n",
        "        with Capture():\n            try:\n                ran.append(1)\n            finally:\n"
        "                ran.append(3)\n",
        "        with Capture():\n            while ran.append(4): pass\n",
    ):
        text += body
    linecache.cache["<events>"] = (len(text), None, text.splitlines(True), "<events>")
    tool = monitoring.COVERAGE_ID
    monitoring.use_tool_id(tool, "test")
    try:
        for name in names:
            event = getattr(monitoring.events, name)
            namespace: dict[str, Any] = {}
            exec(compile(text, "<events>", "exec"), namespace)
            function = namespace["function"]
            ran: list[int] = []
            if late:
                function(Capture, ran)
            monitoring.register_callback(tool, event, lambda *arguments: monitoring.DISABLE)
            monitoring.set_local_events(tool, function.__code__, event)
            function(Capture, ran)
            function(Capture, ran)
            monitoring.restart_events()
            function(Capture, ran)
            monitoring.set_local_events(tool, function.__code__, 0)
            function(Capture, ran)
            monitoring.register_callback(tool, event, None)
            assert ran == []
    finally:
        monitoring.free_tool_id(tool)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="has no sys.monitoring")
def test_other_monitoring_tools_see_every_line_after_a_block() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]

    def function() -> None:
        x = 1
        for _ in range(3):
            with Capture():
                raise AssertionError
            x += 1
        x += 2

    lines = []
    code = function.__code__
    tool = monitoring.COVERAGE_ID
    monitoring.use_tool_id(tool, "test")
    try:
        monitoring.register_callback(
            tool, monitoring.events.LINE, lambda code, line: lines.append(line - code.co_firstlineno)
        )
        monitoring.set_local_events(tool, code, monitoring.events.LINE)
        function()
        monitoring.restart_events()
        function()
    finally:
        monitoring.set_local_events(tool, code, 0)
        monitoring.register_callback(tool, monitoring.events.LINE, None)
        monitoring.free_tool_id(tool)
    assert [line for line in lines if line != 4] == [1, 2, 3, 3, 5, 2, 3, 3, 5, 2, 3, 3, 5, 2, 6] * 2


@pytest.mark.skipif(sys.version_info < (3, 12), reason="has no sys.monitoring")
def test_the_first_free_monitoring_tool_is_used(run_python: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "taken = [int(number) for number in sys.argv[1:]]\n"
        "for number in taken:\n"
        "    sys.monitoring.use_tool_id(number, 'other')\n"
        "from capture_support import Capture\n"
        "for number in range(3):\n"
        "    with Capture() as block:\n"
        "        print('ran')\n"
        "print([number for number in range(6) if sys.monitoring.get_tool(number) == 'nnsight'], block.skipped)\n"
    )
    assert run_python("script.py") == "[4] True"
    assert run_python("script.py", "4") == "[3] True"
    assert run_python("script.py", "4", "3") == "[5] True"
    (tmp_path / "taken.py").write_text(
        "import sys\n"
        "for number in (3, 4, 5):\n"
        "    sys.monitoring.use_tool_id(number, 'other')\n"
        "from capture_support import Capture\n"
        "try:\n"
        "    with Capture() as block:\n"
        "        print('ran')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    assert run_python("taken.py").startswith("CaptureError the tools 3, 4 and 5 of sys.monitoring are all in use")


def test_a_repeated_capture_is_fast() -> None:
    class Bare:
        def __enter__(self) -> Any:
            frame = sys._getframe(1)
            self._skipper = BodySkipper(frame, find_block(frame))
            self._skipper.start()
            return self

        def __exit__(self, *exc: Any) -> bool:
            return self._skipper.finish(*exc)

    def repeat(times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            with Bare():
                raise AssertionError
        return (time.perf_counter() - begin) / times * 1e6

    repeat(100)
    best = min(repeat(1000) for _ in range(5))
    print(f"a repeated capture and skip takes {best:.1f} µs")
    assert best < 200
