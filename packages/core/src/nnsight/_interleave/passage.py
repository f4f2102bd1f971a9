"""The calls that blocks wait at: a module's forward, and the ops in it.

A module's forward is replaced on its instance while a block waits for it. Where a block waits for an op, the forward
that runs is a copy of the module's own in which each op passes through a `Point`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

from greenlet import getcurrent

from nnsight._interleave.skips import Seen, run_with_skips
from nnsight._source import Op, forward_of, rewrite, running_function, with_ops
from nnsight.errors import UnknownLocationError

if TYPE_CHECKING:
    from torch import nn

    from nnsight._interleave.ahead import Keeper
    from nnsight._interleave.interleaver import Interleaver
    from nnsight._interleave.location import Location
    from nnsight._interleave.recording import Recording
    from nnsight._interleave.run import BlockRun


class Passage:
    """One call of the model that blocks wait at.

    Attributes:
        inputs: Blocks that wait for its arguments.
        outputs: Blocks that wait for what it returns.
        skips: Blocks that wait to put a value in its place.
        path: Path of the module that it is, or is in.
        name: How a block spells it.
        looked_into: Whether a block may ask for ops inside while it runs.
        within: Blocks that wait for an op inside, with their location and how deep in its ops this passage is.
        seen: What it returned earlier, by the kinds of its arguments.
        apart: Whether edits change only what it hands on, and not other names of the same memory.
    """

    apart: ClassVar[bool] = False
    __slots__ = ("_active", "hub", "inputs", "looked_into", "name", "outputs", "path", "seen", "skips", "within")

    def __init__(self, hub: Interleaver, path: str, name: str) -> None:
        """Nobody waits yet."""
        self.hub = hub
        self.path = path
        self.name = name
        self.inputs: list[BlockRun] = []
        self.outputs: list[BlockRun] = []
        self.skips: list[BlockRun] = []
        self.within: dict[BlockRun, tuple[Location, int]] = {}
        self.seen: dict[object, Seen] = {}
        self.looked_into = False
        self._active: Body | None = None

    def enlist(self, run: BlockRun, location: Location, depth: int = 0) -> None:
        """Let a block wait here, or at an op inside.

        Args:
            run: The block.
            location: What it waits for.
            depth: How many of the location's ops lead here.
        """
        if depth < len(location.ops):
            self.within[run] = (location, depth)
            if self._active is not None:
                self._active.enlist(run, location, depth)
        elif location.side == "output":
            self.outputs.append(run)
        elif location.side == "skip":
            self.skips.append(run)
        else:
            self.inputs.append(run)

    def clear(self) -> None:
        """Forget who waits."""
        self.inputs.clear()
        self.outputs.clear()
        self.skips.clear()
        self.within.clear()

    def through(self, original: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run `original` between serving its inputs and its output, or put something in its place."""
        if self.inputs:
            args, kwargs = self.hub.serve_inputs(self, args, kwargs)
        return self._returned(self._made(original, args, kwargs))

    def _made(self, original: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if self.skips:
            return run_with_skips(self.hub, self, original, args, kwargs)
        return self.run(original, args, kwargs)

    def _returned(self, output: object) -> object:
        return self.hub.serve_output(self, output) if self.outputs else output

    def run(self, original: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run `original`, or the copy of it whose ops blocks wait for."""
        if not (self.within or self.looked_into):
            return original(*args, **kwargs)
        body = self._body(original)
        if body is None:
            return original(*args, **kwargs)
        before, self._active = self._active, body
        try:
            self._enlist_all(body)
            output = body.function(*args, **kwargs)
        finally:
            body.clear()
            self._active = before
        if before is not None:
            self._enlist_all(before)
        return output

    def _enlist_all(self, body: Body) -> None:
        for run, (location, depth) in list(self.within.items()):
            if run.wait is not location:
                del self.within[run]
            elif location.ops[depth] in body.points:
                body.enlist(run, location, depth)
            else:
                self._refuse(run, body.unknown(location, depth))

    def _refuse(self, run: BlockRun, error: Exception) -> None:
        self.within.pop(run, None)
        run.fail(error)
        self.hub.enlist(run)

    def _body(self, original: Callable[..., object]) -> Body | None:
        try:
            return Body(original, self)
        except Exception as error:  # noqa: BLE001 - it belongs to the requests that look in here, never to the model
            for run, (location, _) in list(self.within.items()):
                if run.wait is location:
                    self._refuse(run, error)
            return None


class Site(Passage):
    """One module, and its replaced `forward`.

    Attributes:
        armed: Whether the forward is replaced.
        depth: How many calls of the module are under way.
        call: The arguments of the innermost of them.
        external: Whether whoever calls the module does it through `around`.
        records: Requests for which its calls are recorded, by which of its paths, and in what.
        keepers: What copies its output for blocks that run when the model is past it.
    """

    __slots__ = (
        "_known",
        "_module",
        "_prior",
        "armed",
        "call",
        "depth",
        "external",
        "keepers",
        "nnsight_original",
        "records",
    )

    def __init__(self, module: nn.Module, hub: Interleaver, path: str) -> None:
        """Prepare a site; nothing is replaced before `arm`."""
        super().__init__(hub, path, path or "the model")
        self._module = module
        self._prior: Callable[..., object] | None = None
        self._known: tuple[Callable[..., object] | None, Body | None] = (None, None)
        self.nnsight_original: Callable[..., object] = forward_of(module)
        self.armed = False
        self.depth = 0
        self.call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.external = False
        self.records: list[tuple[BlockRun, str, Recording]] = []
        self.keepers: list[Keeper] = []

    def arm(self) -> None:
        """Replace the module's `forward`."""
        self.armed = True
        if not self.external:
            self._prior = self._module.__dict__.get("forward")
            self.nnsight_original = self._module.forward
            self._module.__dict__["forward"] = self.forward

    def disarm(self) -> None:
        """Restore the module's `forward`, and forget who waits."""
        self.armed = False
        if not self.external:
            if self._prior is None:
                del self._module.__dict__["forward"]
            else:
                self._module.__dict__["forward"] = self._prior
            self._prior = None
        self.depth = 0
        self.call = None
        self.looked_into = False
        self.records.clear()
        self.keepers.clear()
        self.clear()

    def forward(self, *args: Any, **kwargs: Any) -> object:
        """Stand in for the module's `forward`."""
        original = self.nnsight_original
        if getcurrent() is not self.hub.turn:
            return original(*args, **kwargs)
        return self.around(original, args, kwargs)

    def around(self, original: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run the module's forward between serving its inputs and its output."""
        self.depth += 1
        try:
            if self.inputs or self.skips or self.records or self.within or self.looked_into:
                return self.through(original, args, kwargs)
            # Nearly every call: nobody waits for anything but what it returns, which takes a short way.
            outer, self.call = self.call, (args, kwargs)
            try:
                output = original(*args, **kwargs)
            finally:
                self.call = outer
            return self._returned(output)
        finally:
            self.depth -= 1

    def _returned(self, output: object) -> object:
        if self.outputs:
            output = self.hub.serve_output(self, output)
        for keeper in self.keepers:
            keeper.keep(output)
        # A block that was served inside may have begun to record.
        if self.records:
            self.hub.record_output(self, output)
        return output

    def run(self, original: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run the module's forward, and remember what it is given while it runs."""
        outer, self.call = self.call, (args, kwargs)
        try:
            return super().run(original, args, kwargs)
        finally:
            self.call = outer

    def _made(self, original: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if self.records:
            self.hub.record_inputs(self, args, kwargs)
        return super()._made(original, args, kwargs)

    def _body(self, original: Callable[..., object]) -> Body | None:
        known, body = self._known
        # Methods are made anew whenever they are looked up.
        same = known is original or (isinstance(original, MethodType) and known == original)
        if not same or (body is None and self.within):
            body = super()._body(original)
            self._known = (original, body)
        return body


class Point(Passage):
    """One op of a function."""

    apart: ClassVar[bool] = True
    __slots__ = ("enter",)

    def __init__(self, outer: Passage, op: Op) -> None:
        """Stand at an op of what `outer` calls."""
        super().__init__(outer.hub, outer.path, f"{outer.name}.source.{op.name}")
        self.enter: Callable[..., object] = self.call if op.is_call else self.value

    def call(self, function: Callable[..., object], /, *args: Any, **kwargs: Any) -> object:
        """Stand in for a call."""
        if (self.inputs or self.within or self.skips) and getcurrent() is self.hub.turn:
            return self.through(function, args, kwargs)
        output = function(*args, **kwargs)
        # A block that was served inside the call may have gone on to wait for what it returns.
        return self.value(output) if self.outputs else output

    def value(self, value: object, /) -> object:
        """Stand in for the value of an assignment, or for what a call returned."""
        if not self.outputs or getcurrent() is not self.hub.turn:
            return value
        return self.hub.serve_output(self, value)


class Body:
    """A callable with a point at each of its ops.

    Attributes:
        points: The ops by name, in order.
        function: What is called in the place of the original.
    """

    __slots__ = ("_name", "function", "points")

    def __init__(self, original: object, outer: Passage) -> None:
        """Make the copy of what `outer` calls.

        Raises:
            SourceNotFoundError: There is no Python source for it.
            UnsupportedFeatureError: It is of a kind that cannot be looked into.
        """
        running = running_function(original, outer.name)
        rewritten = rewrite(running.function)
        self._name = running.function.__qualname__
        self.points = {op.name: Point(outer, op) for op in rewritten.ops}
        enters = [point.enter for point in self.points.values()]
        self.function = running.replaced(with_ops(running.function, rewritten, enters))

    def enlist(self, run: BlockRun, location: Location, depth: int) -> None:
        """Let a block wait at one of the ops; one that is not there is missed like any other at the step's end."""
        point = self.points.get(location.ops[depth])
        if point is not None:
            point.enlist(run, location, depth + 1)

    def clear(self) -> None:
        """Forget who waits at the ops."""
        for point in self.points.values():
            point.clear()

    def unknown(self, location: Location, depth: int) -> UnknownLocationError:
        """Describe an op that is not here."""
        return unknown_op(self._name, location.ops[depth], self.points, location.name)


def unknown_op(function: str, name: str, names: Iterable[str], where: str = "") -> UnknownLocationError:
    """Describe an op that a function has not, with the nearest ones that it has, and all of them."""
    known = list(names)
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(nearest)}; " if nearest else ""
    asked = f" (asked for as {where})" if where else ""
    has = f"it has: {', '.join(known)}" if known else "it has none"
    return UnknownLocationError(f"{function} has no op {name!r}{asked}; {hint}{has}; print its .source to see them")
