"""Leaving the body of a `with` statement before its first instruction."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections import Counter
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from nnsight._capture.finding import find_site
from nnsight._capture.variables import assign, release_snapshot
from nnsight.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, TracebackType

    from nnsight._capture.leaving import Exit
    from nnsight._capture.source import BlockSource

# Part of Python since 3.12.
_MONITORING: Any = getattr(sys, "monitoring", None)


class _SkipSignal(BaseException):
    """Raised at the first instruction of a body to leave it. It ends in the block's own `__exit__`."""


class BodySkipper:
    """Skips the body of one `with` statement, once.

    The `as` target of the statement is bound before the body is left. `start` must be the last thing that
    `__enter__` does, and `finish` must be called by `__exit__` with its arguments.

    Python 3.12 and later watch the one code object through `sys.monitoring`, which no other thread, debugger or
    coverage tool notices. Python 3.11 has only `sys.settrace`: the tracing function of this thread is replaced until
    `finish` puts it back.
    """

    def __init__(self, frame: FrameType, block: BlockSource) -> None:
        self._frame: FrameType | None = frame
        self._place = (block.filename, block.first_line)
        self._exit = find_site(frame).exit
        self._signal: _SkipSignal | None = None
        self._watch: _Tracing | _Monitoring | None = None

    def start(self) -> None:
        """Arrange that the body is left at its first instruction.

        Raises:
            CaptureError: Python reports no events here, so that the body would run.
        """
        frame = self._frame
        if not self._exit.points or frame is None:
            return
        signal, watch = _SkipSignal(), _watch()
        if not watch.start(frame, self._exit, signal):
            watch.stop(frame)
            raise CaptureError(
                f"the block at {self._place[0]}:{self._place[1]} is entered while a debugger evaluates an expression, "
                "when Python cannot skip its body; run the code itself, or in pdb use the `debug` command"
            )
        self._signal, self._watch = signal, watch

    def finish(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> bool:
        """Undo `start`.

        Args:
            exc_type: The type of the exception that ended the block.
            exc: The exception that ended the block.
            tb: Its traceback.

        Returns:
            True if the body was skipped, or is empty, so that the block is to run elsewhere and `__exit__` has to
            return True. False if entering the block failed, for example in the `as` target.

        Raises:
            CaptureError: The body ran in place although it was to be skipped.
        """
        signal, frame, watch = self._signal, self._frame, self._watch
        self._signal = self._frame = self._watch = None
        if watch is not None and frame is not None:
            watch.stop(frame)
        if signal is None:
            return exc_type is None
        if exc is signal:
            # The traceback refers to the frame, whose variables may refer to this object.
            signal.__traceback__ = None
            return True
        if exc_type is None:
            raise CaptureError(
                f"the body of the block at {self._place[0]}:{self._place[1]} ran in place: something else has taken "
                "over the tracing of this thread"
            )
        return False


def _watch() -> _Monitoring | _Tracing:
    # Setting a tracing function on Python 3.12 and later makes every thread go through all code that runs anew, and
    # together with other threads that do the same it has crashed 3.12.1.
    return _Tracing() if _MONITORING is None else _Monitoring.shared()


class _Monitoring:
    """Skips through `sys.monitoring`.

    The events of a code object are on only while a frame of it is between `start` and `stop`. Left on, they would be
    lost in Python 3.12 and 3.13 when a debugger or coverage asks for events of the same code later.

    Events of lines are asked for as well, but not used: when another tool turns off the event of a line that no tool
    is interested in any more, Python loses the event of its first instruction once.
    """

    _shared: _Monitoring | None = None
    _lock = threading.Lock()

    @classmethod
    def shared(cls) -> _Monitoring:
        """The one object that holds a tool number of this process.

        Raises:
            CaptureError: All of them are taken.
        """
        with cls._lock:
            if cls._shared is None:
                # Python's documentation gives the lower numbers to debuggers, coverage and profilers.
                for tool in (4, 3, 5):
                    with contextlib.suppress(ValueError):
                        _MONITORING.use_tool_id(tool, "nnsight")
                        cls._shared = cls(tool)
                        break
                else:
                    raise CaptureError(
                        "the tools 3, 4 and 5 of sys.monitoring are all in use, so that no block can be skipped; "
                        "free one of them with sys.monitoring.free_tool_id"
                    )
            return cls._shared

    def __init__(self, tool: int) -> None:
        self._tool = tool
        # By the identity of the frame, which the entry keeps alive.
        self._armed: dict[int, tuple[FrameType, frozenset[int], _SkipSignal]] = {}
        # By the identity of the code object, how many of these frames run it.
        self._frames: Counter[int] = Counter()
        events = _MONITORING.events
        self._events = events.INSTRUCTION | events.LINE
        _MONITORING.register_callback(tool, events.INSTRUCTION, self._on_instruction)
        _MONITORING.register_callback(tool, events.PY_START, _answer_probe)
        _MONITORING.set_local_events(tool, _probe.__code__, events.PY_START)

    def start(self, frame: FrameType, way_out: Exit, signal: _SkipSignal) -> bool:
        """Watch a frame until it comes to its body, and say whether events are reported at all."""
        code = frame.f_code
        self.stop(frame)
        self._armed[id(frame)] = (frame, way_out.points, signal)
        with self._lock:
            self._frames[id(code)] += 1
            if self._frames[id(code)] == 1:
                _MONITORING.set_local_events(self._tool, code, self._events)
        try:
            _probe()
        except _Answer:
            return True
        return False

    def stop(self, frame: FrameType) -> None:
        """Stop watching a frame."""
        code = frame.f_code
        if self._armed.pop(id(frame), None) is None:
            return
        with self._lock:
            self._frames[id(code)] -= 1
            if not self._frames[id(code)]:
                del self._frames[id(code)]
                _MONITORING.set_local_events(self._tool, code, 0)

    def _on_instruction(self, code: CodeType, offset: int) -> None:
        # Other threads may run the same code.
        armed = self._armed.get(id(sys._getframe(1)))
        if armed is not None and offset in armed[1]:
            raise armed[2]


class _Answer(BaseException):
    """Raised in `_probe` if events are reported."""


def _probe() -> None:
    """Python reports no events while the callback of another one runs."""


def _answer_probe(code: CodeType, offset: int) -> None:
    raise _Answer


class _Tracing:
    """Skips through `sys.settrace`, on Python 3.11."""

    def start(self, frame: FrameType, way_out: Exit, signal: _SkipSignal) -> bool:
        """Watch a frame until it comes to its body, and say whether events are reported at all.

        Raises:
            CaptureError: The body starts with a `try` statement, which can only be skipped after a plain name.
        """
        points, name = way_out.points, None
        if way_out.repeated:
            # An exception from a tracing function ends all tracing, so the handlers of the `try` could not be left.
            if way_out.early is None:
                raise CaptureError(
                    f"the block at {frame.f_code.co_filename}:{frame.f_lineno} starts with `try`, which Python before "
                    "3.12 can only skip after a plain name; write `as name` and assign the name in the block"
                )
            points, name = frozenset({way_out.early}), way_out.early_name
        returned = _returned_to(frame) if name is not None else None
        self._previous = sys.gettrace()
        self._local = (frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines)
        reported = False

        def trace_calls(traced: FrameType, event: str, argument: object) -> None:
            nonlocal reported
            reported = True

        def trace(traced: FrameType, event: str, argument: object) -> None:
            # It stays in place without returning itself, which would keep it until the garbage collector comes by.
            if event == "opcode" and traced.f_lasti in points:
                if name is not None and returned is not None:
                    assign(traced, {name: returned[0]})
                raise signal

        frame.f_trace = trace
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        _settrace()(trace_calls)
        _call()
        return reported

    def stop(self, frame: FrameType) -> None:
        """Put the previous tracing function back."""
        settrace = _settrace()
        settrace(None)
        frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines = self._local
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            release_snapshot(frame, frame.f_locals)
        previous = self._previous
        if previous is None or isinstance(previous, FunctionType | MethodType):
            settrace(previous)
            return
        # The tracer of coverage is written in C. It takes over from its Python side at the first call that it sees,
        # and counts the end of every call from then on. It has not seen this function and its callers begin.
        for _ in range(_depth(frame)):
            settrace(previous)
            _begin(settrace)
        settrace(previous)
        _call()


def _returned_to(frame: FrameType) -> list[object]:
    """A list that gets what the call from `frame` returns, when it returns."""
    child = sys._getframe(1)
    while child.f_back is not None and child.f_back is not frame:
        child = child.f_back
    before = child.f_trace
    returned: list[object] = []

    def trace(traced: FrameType, event: str, argument: object) -> None:
        nonlocal before
        if event == "return":
            returned.append(argument)
        if before is not None:
            before = before(traced, event, argument)

    child.f_trace = trace
    return returned


def _depth(frame: FrameType) -> int:
    """The number of frames from the caller up to a frame."""
    depth = 0
    current: FrameType | None = sys._getframe(1)
    while current is not None and current is not frame:
        depth += 1
        current = current.f_back
    return depth


def _call() -> None:
    """Make a call that a tracing function can see."""


def _begin(settrace: Callable[[Any], None]) -> None:
    """Let the tracing function see the beginning of a call, but not its end."""
    settrace(None)


def _settrace() -> Callable[[Any], None]:
    # The debugger of debugpy and PyCharm replaces `sys.settrace` by a function that warns of debuggers that are not
    # put back, and keeps the original.
    holder = getattr(sys.modules.get("pydevd_tracing"), "TracingFunctionHolder", None)
    return getattr(holder, "_original_tracing", None) or sys.settrace
