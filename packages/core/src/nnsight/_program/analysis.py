"""What a block does to the model, told once for all invokes of a trace that run the same block on the same things."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch

from nnsight._envoy import Envoy, Source, SourceOp
from nnsight._program.effects import Effects, summarize
from nnsight._program.harmless import is_plain, stands_in
from nnsight._program.inspected import check_ops
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
# These stay what they are while a trace is built.
_LASTING: Final = (Envoy, Source, SourceOp, ModuleType, BuiltinFunctionType)


class Analyses:
    """The analyses of the blocks of one trace."""

    def __init__(self) -> None:
        """Begin with none."""
        self._found: dict[Hashable, Effects] = {}
        self._exactly: dict[Hashable, Effects] = {}

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
        key = _key(source, values, _mark)
        known = None if key is None else self._found.get(key)
        if known is None:
            check_ops(statements, values)
            known = summarize(statements, values, value_names)
            if key is not None:
                self._found[key] = known
        elif not known.read_only:
            known = self._with_proof(known, source, statements, values)
        return known

    def _with_proof(
        self, known: Effects, source: BlockSource, statements: Sequence[ast.stmt], values: Mapping[str, object]
    ) -> Effects:
        """Prove anew what depends on more of the values than their kinds."""
        key = _key(source, values, _exact_mark)
        found = None if key is None else self._exactly.get(key)
        if found is None:
            uniform = prove_uniform(statements, values)
            found = replace(known, row_local=uniform.row_local, every_row=uniform.every_row)
            if key is not None:
                self._exactly[key] = found
        return found


def _key(
    source: BlockSource, values: Mapping[str, object], mark: Callable[[object], Hashable | None]
) -> Hashable | None:
    """Say what an analysis depends on, or None where that may change without a sign."""
    parts: list[Hashable] = [source]
    for name, value in values.items():
        found = mark(value)
        if found is None:
            return None
        parts += (name, found)
    return tuple(parts)


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
    if isinstance(value, _LASTING) or stands_in(value):
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
    return None if kind in _COLLECTIONS else _mark(value)
