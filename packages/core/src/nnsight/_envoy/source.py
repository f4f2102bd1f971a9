"""The stand-ins for the ops of a forward, and of the functions that they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from nnsight._envoy.sides import Sides
from nnsight._interleave.location import SIDES, Location
from nnsight._interleave.passage import unknown_op
from nnsight._interleave.turns import current_run
from nnsight._source import (
    UNKNOWN,
    Op,
    RunningFunction,
    called_by,
    list_ops,
    rewrite,
    running_function,
    show_op,
)
from nnsight.errors import OutsideTraceError, UnknownLocationError

if TYPE_CHECKING:
    from nnsight._envoy.tree import ModelTree


class Source:
    """The ops of one function: `source.qkv_split_0` is one of them, and printing it lists all.

    An op is named after what it calls, with `_` for `.`, or after the variables that it assigns, and its occurrence.
    """

    __slots__ = ("_ops", "_outer", "_path", "_repeats", "_running", "_shown", "_tree")
    _ops: dict[str, SourceOp]
    _outer: tuple[str, ...]
    _path: str
    _repeats: bool
    _running: RunningFunction | None
    _shown: dict[str, Op]
    _tree: ModelTree

    def __init__(
        self, tree: ModelTree, path: str, outer: tuple[str, ...], running: RunningFunction | None, *, repeats: bool
    ) -> None:
        """Stand for a function; made by an envoy or an op.

        Args:
            tree: The tree of the model.
            path: Path of the module.
            outer: The ops that lead to the function, from the module's forward on.
            running: The function, or None where only running it tells which one it is.
            repeats: Whether the function may be called several times in one call of the module.
        """
        set_slot = object.__setattr__
        set_slot(self, "_tree", tree)
        set_slot(self, "_path", path)
        set_slot(self, "_outer", outer)
        set_slot(self, "_running", running)
        set_slot(self, "_repeats", repeats)
        set_slot(self, "_ops", {})
        set_slot(self, "_shown", {op.name: op for op in rewrite(running.function).ops} if running else {})

    @classmethod
    def of_forward(cls, tree: ModelTree, path: str, forward: object) -> Source:
        """Look into the forward of a module."""
        running = running_function(forward, path or "the model")
        return cls(tree, path, (), running, repeats=False)

    def __getattr__(self, name: str) -> SourceOp:
        """Return an op.

        Raises:
            UnknownLocationError: The function has no op of that name; the message lists those that it has.
        """
        known = self._ops.get(name)
        if known is not None:
            return known
        if name.startswith("__"):
            raise AttributeError(name)
        op = self._shown.get(name)
        if op is None and self._running is not None:
            where = _spell(self._path, (*self._outer, name))
            raise unknown_op(self._running.function.__qualname__, name, self._shown, where)
        repeats = self._repeats or (op is not None and op.repeats)
        made = self._ops[name] = SourceOp(self._tree, self._path, (*self._outer, name), op, self._running, repeats)
        return made

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse to replace an op itself."""
        raise UnknownLocationError(
            f"{_spell(self._path, (*self._outer, name))} cannot be assigned; assign its .output, .input or .inputs"
        )

    def __dir__(self) -> list[str]:
        """List the ops."""
        return list(self._shown)

    def __repr__(self) -> str:
        """Print the function, with the names of its ops beside the lines on which they stand."""
        where = _spell_source(self)
        if self._running is None:
            return f"{where}: which function is called is known only when it runs"
        function = self._running.function
        listing = list_ops(rewrite(function).source, list(self._shown.values()))
        return f"{where}: {function.__qualname__}\n{listing}"

    def __reduce__(self) -> Any:
        """Refuse to be pickled: it travels by its path."""
        raise OutsideTraceError(f"{_spell_source(self)} cannot be pickled; name it inside a block")


class SourceOp(Sides):
    """One call or assignment inside a forward: what it is given and returns, in a block."""

    __slots__ = ("_function", "_locations", "_op", "_path", "_source", "_tree", "_within")

    def __init__(
        self,
        tree: ModelTree,
        path: str,
        within: tuple[str, ...],
        op: Op | None,
        function: RunningFunction | None,
        repeats: bool,
    ) -> None:
        """Stand for an op; made by its source.

        Args:
            tree: The tree of the model.
            path: Path of the module.
            within: The ops that lead to it from the module's forward on, itself the last.
            op: What is known of it, or None where only running tells which function it is in.
            function: The function that it is in.
            repeats: Whether it may happen several times in one call of the module.
        """
        self._tree = tree
        self._path = path
        self._within = within
        self._op = op
        self._function = function
        self._source: Source | None = None
        self._locations = {side: Location(path, side, within, repeats) for side in (*SIDES, "skip")}

    def skip(self, value: object) -> None:
        """Put `value` in the place of the call, for this request alone; see `Envoy.skip`."""
        current_run().skip(self._location("skip"), value)

    @property
    def source(self) -> Source:
        """The ops of the function that this op calls.

        Raises:
            SourceNotFoundError: The function is not written in Python.
            UnknownLocationError: The op is an assignment, which calls nothing.
        """
        if self._source is None:
            self._source = self._called()
        return self._source

    def _called(self) -> Source:
        self._require_call("source")
        called = UNKNOWN
        if self._op is not None and self._function is not None:
            called = called_by(self._op, self._function)
        if isinstance(called, nn.Module):
            path = self._tree.path_below(called, self._path)
            if path is not None:
                return self._tree.envoy(path).source
        running = None if called is UNKNOWN else running_function(called, self._spell())
        repeats = self._locations["output"].repeats
        return Source(self._tree, self._path, self._within, running, repeats=repeats)

    def _location(self, side: str) -> Location:
        self._tree.check(self._path, "source")
        if side != "output":
            self._require_call(side)
        return self._locations[side]

    def _require_call(self, side: str) -> None:
        if self._op is not None and not self._op.is_call:
            raise UnknownLocationError(
                f"{self._spell()} is an assignment, which has no .{side}; read or assign its .output"
            )

    def _spell(self) -> str:
        return _spell(self._path, self._within)

    def __repr__(self) -> str:
        """Print the op with the lines around it."""
        if self._op is None or self._function is None:
            return f"{self._spell()}: known only when it runs"
        listing = show_op(rewrite(self._function.function).source, self._op)
        return f"{self._spell()}: {self._op.text}\n{listing}"

    def __reduce__(self) -> Any:
        """Refuse to be pickled: it travels by its path."""
        raise OutsideTraceError(f"{self._spell()} cannot be pickled; name it inside a block")


def address_of(source: Source | SourceOp) -> str:
    """Return the dotted path of a source or an op, as `model.get` takes it."""
    return source._spell() if isinstance(source, SourceOp) else _spell_source(source)


def _spell_source(source: Source) -> str:
    return f"{_spell(source._path, source._outer)}.source".removeprefix(".")


def _spell(path: str, ops: tuple[str, ...]) -> str:
    return ".".join([*([path] if path else []), *(part for op in ops for part in ("source", op))])
