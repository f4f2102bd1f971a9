"""The `with` statements of a trace, on the caller's side."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from nnsight._capture import BlockSource, BodySkipper, find_block
from nnsight._program import Program, SaveBook, client_saves
from nnsight._program.analysis import Analyses
from nnsight._program.program import run_in_place
from nnsight._trace.deliver import Place, deliver, raise_first, without_skip
from nnsight._trace.edit import EditResult, chosen_edits
from nnsight._trace.in_block import InBlock
from nnsight._trace.levels import ask_for_exports, leave_pending, without_pending
from nnsight._trace.request import Outcome, Request
from nnsight._trace.session import session_of
from nnsight.errors import InvalidRequestError, OutsideTraceError

if TYPE_CHECKING:
    from nnsight._trace.edit import Edit
    from nnsight._trace.model import TracedModel

_FUNCTION_BLOCK = "with _:\n    value = function(**arguments)\n    value.save()\n"


class Invoker:
    """One invoke of a trace: `with tracer.invoke(prompt):`."""

    def __init__(self, tracer: Tracer, prepared: Any, edits: tuple[Edit, ...] | None) -> None:
        """Prepare the capture of a block."""
        self._tracer = tracer
        self._prepared = prepared
        self._edits = edits

    def __enter__(self) -> Invoker:
        """Find the block and skip it here."""
        frame = sys._getframe(1)
        self._frame: FrameType = frame
        self._source = find_block(frame)
        self._skipper = BodySkipper(frame, self._source)
        self._skipper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Capture the block and put it among the requests of the trace."""
        frame = self.__dict__.pop("_frame")
        if not self._skipper.finish(kind, error, traceback):
            return False
        with without_skip(error):
            here = frame.f_code is self._tracer._running
            self._tracer._add_invoke(self._source, frame, self._prepared, binds=here, edits=self._edits)
        return True


class Tracer(InBlock):
    """A trace: the block that it captures, and what the block saved once it has run.

    Attributes:
        model: The model that is traced.
    """

    stands_in = True

    def __init__(self, model: TracedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Prepare a trace; the input is checked here."""
        self.model = model
        self._session = session_of(model)
        if self._session is not None:
            kwargs = model._merge_keywords(self._session.keywords, kwargs)
        self._keywords = kwargs
        self._kept: frozenset[str] = frozenset()
        self._edits, given = _split(model, kwargs)
        self._single = model._has_input(args, given)
        self._prepared = model._prepare(args, given) if self._single else None
        self._requests: list[Request] = []
        self._book = SaveBook()
        self._analyses = Analyses(model._analyses)
        self._open = False
        self._running: CodeType | None = None
        self._outcomes: list[Outcome] | None = None
        self._saves: dict[str, object] = {}
        self._backend: Any = None

    # Within the with statement ------------------------------------------------------------------------------------

    def __enter__(self) -> Tracer:
        """Find the block and skip it here."""
        frame = sys._getframe(1)
        self._frame: FrameType = frame
        self._source: BlockSource = find_block(frame)
        self._skipper = BodySkipper(frame, self._source)
        self._skipper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Run the block beside its request, or the requests of the invokes that the block makes."""
        frame = self.__dict__.pop("_frame")
        if not self._skipper.finish(kind, error, traceback):
            return False
        with without_skip(error):
            bound: dict[str, object] = {}
            if self._session is not None:
                self._kept = self._session.names_read(frame, self._source)
            if self._single:
                self._add(self._source, frame, self._prepared, given={self._source.target: self}, edits=self._edits)
            else:
                bound = self._run_invokes(frame)
            self._finish(frame, bound)
        return True

    def invoke(self, *args: Any, **kwargs: Any) -> Invoker:
        """Add a request of its own to the trace: `with tracer.invoke(prompt):`.

        Keywords given here win over those of the trace.

        Raises:
            InvalidRequestError: The input cannot be run, or this trace has an input of its own.
        """
        if not self._open:
            raise InvalidRequestError(
                "invoke was called outside the block of its trace, or the trace was given an input itself; "
                "write `with model.trace() as tracer:` and `with tracer.invoke(prompt):` inside it"
            )
        edits, merged = _split(self.model, self.model._merge_keywords(self._keywords, kwargs))
        if not self.model._has_input(args, merged):
            raise InvalidRequestError("invoke needs an input: `with tracer.invoke(prompt):`")
        return Invoker(self, self.model._prepare(args, merged), edits)

    # Within a block these are the block tracer's; out here they exist once the trace has run ------------------------

    @property
    def saves(self) -> dict[str, object]:
        """Everything that the blocks saved, by variable, or by source text where no variable was bound."""
        return self._saves

    @property
    def result(self) -> Any:
        """The finished output of the request, or a list of them for a trace of several invokes."""
        return self._one([outcome.result for outcome in self._done("result")])

    @property
    def backend(self) -> Any:
        """The running trace of an asynchronous engine: `await tracer.backend`, or `async for output in tracer.backend`.

        Raises:
            InvalidRequestError: The engine is not asynchronous: its trace has run when the block ends.
        """
        if self._backend is None:
            raise InvalidRequestError(
                "tracer.backend is the stream of an asynchronous engine, and this model has none: its trace runs when "
                "the block ends, and saves are in your variables; build the model with mode='async' to stream"
            )
        return self._backend

    @property
    def receipt(self) -> Any:
        """What was served and changed: one receipt, or a list for a trace of several invokes.

        Of a request that generates several sequences it is a list with the receipt of each.
        """
        return self._one([outcome.account for outcome in self._done("receipt")])

    @property
    def edits(self) -> Any:
        """What each edit that ran beside the request brought home, by its name; a list of them for several invokes."""
        edits: list[dict[str, EditResult]] = [outcome.edits for outcome in self._done("edits")]
        return self._one(edits)

    @property
    def value(self) -> object:
        """What the function returned, for `model.run`."""
        self._done("value")
        return self._saves.get("value")

    # ----------------------------------------------------------------------------------------------------------------

    @classmethod
    def run_function(cls, model: TracedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tracer:
        """Run a function as the block of a single request; see `TracedModel.run`."""
        if not args or not callable(args[-1]):
            raise InvalidRequestError("model.run takes the function to run last: `model.run(prompt, function)`")
        *inputs, function = args
        tracer = cls(model, tuple(inputs), kwargs)
        if not tracer._single:
            raise InvalidRequestError("model.run needs an input: `model.run(prompt, function)`")
        source = BlockSource("<nnsight run>", 1, _FUNCTION_BLOCK, 0, function.__name__)
        values = {"function": function, "arguments": _arguments(function, model, tracer)}
        program = Program.from_values(source, values)
        tracer._requests.append(Request(program, tracer._prepared, edits=tracer._edits))
        tracer._finish(None, {})
        return tracer

    def _run_invokes(self, frame: FrameType) -> dict[str, object]:
        self._open = True
        try:
            with client_saves(self._book):
                bound = run_in_place(self._source, frame, self._entered)
        finally:
            self._open = False
            self._running = None
        if not self._requests:
            raise InvalidRequestError(
                "the trace has no input and its block makes no invoke; give it one: `model.trace(prompt)`, "
                "or write `with tracer.invoke(prompt):` inside"
            )
        return without_pending(bound)

    def _entered(self, code: CodeType) -> None:
        self._running = code

    def _add(
        self,
        source: BlockSource,
        frame: FrameType,
        prepared: Any,
        *,
        given: dict[Any, object],
        edits: tuple[Edit, ...] | None,
        binds: bool = True,
    ) -> None:
        program = Program.from_frame(
            source,
            frame,
            given=given,
            value_names=self.model._tree.location_names,
            saved=self._book.has,
            analyses=self._analyses,
        )
        if self._session is not None:
            program = program.keeping(self._kept)
        self._requests.append(Request(program, prepared, binds, edits))

    def _add_invoke(
        self, source: BlockSource, frame: FrameType, prepared: Any, *, binds: bool, edits: tuple[Edit, ...] | None
    ) -> None:
        self._add(source, frame, prepared, given={source.target: self}, edits=edits, binds=binds)
        request, number = self._requests[-1], len(self._requests) - 1
        for pending in request.program.pending.values():
            if pending.trace is not self._book:
                raise pending.refusal()
        leave_pending(frame, request, trace=self._book, invoke=number, saved=self._book.has)

    def _finish(self, frame: FrameType | None, bound: dict[str, object]) -> None:
        requests, self._requests = ask_for_exports(self._requests), []
        self._analyses = Analyses(self.model._analyses)
        place = None if frame is None else Place.of(frame)

        def arrive(outcomes: list[Outcome], frame: FrameType | None = None) -> None:
            self._outcomes = outcomes
            self._saves = deliver(frame, bound, requests, outcomes, book=self._book, place=place)
            if self._session is not None:
                self._session.saves.update(self._saves)
            raise_first(outcomes, self._saves)

        self._backend = self.model._defer(requests, arrive, single=self._single)
        if self._backend is None:
            arrive(self.model._run_requests(requests), frame)

    def _done(self, what: str) -> list[Outcome]:
        if self._outcomes is None:
            raise OutsideTraceError(f"tracer.{what} exists once the trace has run, or inside its block")
        return self._outcomes

    def _one(self, values: Sequence[Any]) -> Any:
        return values[0] if self._single else list(values)


def _arguments(function: Callable[..., object], model: TracedModel, tracer: Tracer) -> dict[str, object]:
    offered = {"model": model, "tracer": tracer}
    taken = inspect.signature(function).parameters
    return {name: offered[name] for name in taken if name in offered}


def _split(model: TracedModel, keywords: dict[str, Any]) -> tuple[tuple[Edit, ...] | None, dict[str, Any]]:
    """Return the edits that keywords choose, and the other keywords."""
    if "edits" not in keywords:
        return None, keywords
    others = {name: value for name, value in keywords.items() if name != "edits"}
    return chosen_edits(model, keywords["edits"]), others
