"""What a block does to the model, told once for all invokes and traces that run the same block on the same things."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch

from nnsight._envoy import Envoy, Source, SourceOp
from nnsight._program.effects import Effects, summarize
from nnsight._program.harmless import is_plain, stands_in
from nnsight._program.inspected import check_ops
from nnsight._program.static_reads import static_places
from nnsight._program.uniform import prove_uniform

if TYPE_CHECKING:
    import ast

    from nnsight._capture import BlockSource

# Of values of exactly these types, the analysis looks at the type alone.
_BY_TYPE: Final = frozenset({NoneType, bool, int, float, complex, str, bytes, range})
_ALSO_BY_TYPE: Final = frozenset({torch.dtype, torch.device, torch.Generator, torch.Tensor, torch.nn.Parameter})
_LEAVES: Final = _BY_TYPE | _ALSO_BY_TYPE | {np.ndarray}
# Of these, whether they hold anything but plain data.
_COLLECTIONS: Final = frozenset({list, tuple, dict, set, frozenset})
# Of a block that is proven anew for so many different values, no more proofs are kept.
_MOST_PROOFS: Final = 8
# Of more blocks than that, a model forgets those that it met first.
_MOST_BLOCKS: Final = 256
# Longer lists are not looked through.
_MOST_ITEMS: Final = 256
# These stay what they are while a trace is built.
_LASTING: Final = (Envoy, Source, SourceOp, ModuleType, BuiltinFunctionType)


class Analyses:
    """The analyses of the blocks of one trace, or of those of a model that are true of its later traces as well."""

    def __init__(self, lasting: Analyses | None = None) -> None:
        """Begin with none.

        Args:
            lasting: Where analyses are kept that rest on nothing which lives no longer than the trace.
        """
        self._lasting = lasting
        self._found: dict[Hashable, Effects] = {}
        self._proofs: dict[Hashable, list[_Proof]] = {}

    def effects(
        self,
        source: BlockSource,
        statements: Sequence[ast.stmt],
        values: Mapping[str, object],
        value_names: frozenset[str],
    ) -> Effects:
        """Check the ops that a block names, and summarize what it does.

        Args:
            source: The block.
            statements: Its statements.
            values: What the names bound outside it refer to.
            value_names: Names of the request's own values, such as `logits`.

        Raises:
            UnknownLocationError: The block names an op that its forward has not.
        """
        key = _key(source, values)
        if key is not None and self._lasting is not None and _lasts(values):
            return self._lasting._effects(key, statements, values, value_names)
        return self._effects(key, statements, values, value_names)

    def _effects(
        self,
        key: Hashable | None,
        statements: Sequence[ast.stmt],
        values: Mapping[str, object],
        value_names: frozenset[str],
    ) -> Effects:
        known = None if key is None else self._found.get(key)
        if known is None:
            check_ops(statements, values)
            known = summarize(statements, values, value_names)
            if key is not None:
                self._keep(key, known)
            return known
        # What is proven of places and changes depends on more of some values than their kinds.
        proofs = self._proofs.setdefault(key, [])
        proof = next((proof for proof in proofs if proof.holds_for(values)), None)
        if proof is None:
            proof = _prove(known, statements, values)
            if proof.lasts and len(proofs) < _MOST_PROOFS:
                proofs.append(proof)
        return proof.effects

    def _keep(self, key: Hashable, effects: Effects) -> None:
        if len(self._found) >= _MOST_BLOCKS:
            oldest = next(iter(self._found), None)
            self._found.pop(oldest, None)
            self._proofs.pop(oldest, None)
        self._found[key] = effects


def _lasts(values: Mapping[str, object]) -> bool:
    """Tell whether an analysis keeps nothing of the user's alive: a function may hold on to anything."""
    return not any([isinstance(value, FunctionType | MethodType) for value in values.values()])


def _key(source: BlockSource, values: Mapping[str, object]) -> Hashable | None:
    """Say what an analysis depends on, or None where that may change without a sign."""
    parts: list[Hashable] = [source]
    for name, value in values.items():
        mark = _mark(value)
        if mark is None:
            return None
        parts += (name, mark)
    return tuple(parts)


@dataclass(frozen=True)
class _Proof:
    """Effects of a block, and the values that they follow from.

    Attributes:
        effects: The effects.
        marks: What each name meant that the proof looked at; None for one that may change without a sign.
    """

    effects: Effects
    marks: dict[str, Hashable | None]

    @property
    def lasts(self) -> bool:
        return None not in self.marks.values()

    def holds_for(self, values: Mapping[str, object]) -> bool:
        return all(_exact_mark(values[name]) == mark for name, mark in self.marks.items())


def _prove(known: Effects, statements: Sequence[ast.stmt], values: Mapping[str, object]) -> _Proof:
    watched = _Watched(values)
    if known.read_only:
        effects = replace(known, places=static_places(statements, watched))
    else:
        uniform = prove_uniform(statements, watched)
        effects = replace(known, row_local=uniform.row_local, every_row=uniform.every_row)
    marks = {name: _exact_mark(values[name]) for name in watched.looked_at}
    return _Proof(known if effects == known else effects, marks)


class _Watched(Mapping[str, object]):
    """Values by name, with a note of those that were looked at."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.looked_at: set[str] = set()

    def __getitem__(self, name: str) -> object:
        value = self._values[name]
        self.looked_at.add(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class _Same:
    """Equals what wraps the very same object, which it keeps."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value


def _mark(value: object) -> Hashable | None:
    kind: Any = type(value)
    if kind in _LEAVES:
        return cast("Hashable", kind)
    if kind in _COLLECTIONS:
        return kind, is_plain(value)
    if stands_in(value):
        # A model is its envoys; of a tracer only its kind matters.
        return kind, _Same(getattr(value, "envoy", None))
    if isinstance(value, _LASTING):
        return _Same(value)
    if kind is FunctionType or kind is MethodType:
        function = value.__func__ if isinstance(value, MethodType) else value
        return kind, _Same(function), _Same(function.__code__)  # type: ignore[attr-defined]
    return None


def _exact_mark(value: object) -> Hashable | None:
    kind: Any = type(value)
    if isinstance(value, torch.Tensor | np.ndarray):
        return kind, tuple(value.shape), value.dtype
    if kind in _BY_TYPE:
        return kind, value
    if kind in (list, tuple) and len(value) <= _MOST_ITEMS:  # type: ignore[arg-type]
        marks = tuple([_exact_mark(item) for item in value])  # type: ignore[attr-defined]
        return None if None in marks else (kind, marks)
    return None if kind in _COLLECTIONS else _mark(value)
