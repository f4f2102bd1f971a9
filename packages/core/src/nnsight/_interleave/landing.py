"""What a block left in a value, brought back into the model: only what it changed."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import torch

from nnsight._interleave.structure import ATOMS, describe, fill, holds_tensor, parts, shell
from nnsight.errors import MismatchedValueError

Tensor = torch.Tensor

_SEQUENCES = (tuple, list, deque)
_MAPPINGS = (dict, MappingProxyType)


# One tensor that a block was handed: its copy, the copy's version then, and the model's own tensor.
Handed = tuple[Tensor, int, Tensor]


class Landing:
    """Brings one value back into the model.

    Attributes:
        changed: Whether anything of the value was found to be changed.
    """

    def __init__(
        self,
        handed: Sequence[Handed],
        put: Callable[[Tensor, Tensor, str], Tensor],
        number: Callable[[Tensor, float], Tensor],
        *,
        before_change: Callable[[], None],
        everything: bool = False,
        dry: bool = False,
    ) -> None:
        """Prepare to land a value.

        Args:
            handed: The tensors that the block was handed.
            put: Lands one tensor: the live one, the block's, and how the block spells the place.
            number: Makes a tensor like a live one that holds one number.
            before_change: Called when a change is found; may raise to refuse it.
            everything: Whether copies that the block left as they were are landed too.
            dry: Whether the model's own objects stay as they are, since this is only a check.
        """
        self._handed = {id(entry[0]): entry for entry in handed}
        self._everything = everything
        self._put = put
        self._number = number
        self._before_change = before_change
        self._dry = dry
        self._under_way: dict[tuple[int, int], object] = {}
        self.changed = False

    def land(self, live: Any, own: Any, where: str) -> Any:
        """Land `own` in `live`, which must have the same structure.

        Args:
            live: The model's own value.
            own: What the block left.
            where: How the block spells the value.

        Returns:
            What the model goes on with: `live` itself where nothing takes its place.

        Raises:
            MismatchedValueError: The structures differ.
        """
        if own is live:
            # The block was not handed it.
            return live
        if isinstance(live, Tensor):
            if isinstance(own, Tensor):
                return live if self._is_unchanged(live, own) else self._change(live, own, where)
            if isinstance(own, int | float) and not isinstance(own, bool):
                return self._change(live, self._number(live, own), where)
            raise _mismatch(live, own, where)
        if type(live) is tuple and type(own) is tuple and len(own) == len(live):
            items = [self.land(*pair, f"{where}[{index}]") for index, pair in enumerate(zip(live, own, strict=True))]
            kept = self._dry or all([new is item for new, item in zip(items, live, strict=True)])
            return live if kept else tuple(items)
        pair = (id(live), id(own))
        if pair in self._under_way:
            return self._under_way[pair]
        self._under_way[pair] = live
        landed = self._under_way[pair] = self._land_parts(live, own, where)
        return landed

    def _is_unchanged(self, live: Tensor, own: Tensor) -> bool:
        _, version, handed_for = self._handed.get(id(own), (own, -1, None))
        return handed_for is live and own._version == version and not self._everything

    def _change(self, live: Tensor, own: Tensor, where: str) -> Tensor:
        self._note_change()
        return self._put(live, own, where)

    def _note_change(self) -> None:
        self.changed = True
        self._before_change()

    def _land_parts(self, live: Any, own: Any, where: str) -> Any:
        if isinstance(live, set | frozenset):
            pairs = self._pairs_of_set(live, own, where)
        elif isinstance(live, _SEQUENCES + _MAPPINGS) or holds_tensor(live):
            pairs = _pairs(live, own, where)
        else:
            self._note_change()
            return own
        landed = [self.land(item, other, f"{where}{place}") for place, item, other in pairs]
        if self._dry or all(new is item for new, (_, item, _) in zip(landed, pairs, strict=True)):
            return live
        if isinstance(live, _SEQUENCES + _MAPPINGS + (set, frozenset)) or dataclasses.is_dataclass(live):
            return fill(live, shell(live), landed)
        # The model may hold on to an object of its own making, such as a cache: it stays the same object.
        return fill(live, live, landed)

    def _pairs_of_set(self, live: Any, own: Any, where: str) -> list[tuple[str, Any, Any]]:
        if not isinstance(own, set | frozenset) or len(own) != len(live):
            raise _mismatch(live, own, where)
        given = {id(of): copy for copy, _, of in self._handed.values()}
        elements = {id(item) for item in own}
        pairs = []
        for item in live:
            other = given.get(id(item), item)
            if id(other) not in elements and (isinstance(item, Tensor) or item not in own):
                raise MismatchedValueError(
                    f"the elements of the set {where} were replaced, but a set does not say which takes whose place; "
                    "edit the tensors in it in place"
                )
            pairs.append(("{}", item, other))
        return pairs


def _pairs(live: Any, own: Any, where: str) -> list[tuple[str, Any, Any]]:
    """Pair the parts of the model's value with those that the block left in their places."""
    if isinstance(live, _MAPPINGS):
        fits = isinstance(own, _MAPPINGS) and own.keys() == live.keys()
    elif isinstance(live, _SEQUENCES):
        fits = isinstance(own, _SEQUENCES) and len(own) == len(live)
    else:
        fits = type(own) is type(live)
    if not fits:
        raise _mismatch(live, own, where)
    left = dict(parts(own))
    return [(place, item, left.get(place, item)) for place, item in parts(live)]


def _mismatch(live: object, own: object, where: str) -> MismatchedValueError:
    return MismatchedValueError(
        f"{where} holds {describe(live)}, but the block assigned {describe(own)}; assign one of the same structure"
    )


def is_fixed(own: object) -> bool:
    """Tell whether nothing can take the place of something in a value: a tensor, a tuple of tensors, a number."""
    if isinstance(own, Tensor) or type(own) in ATOMS:
        return True
    return type(own) is tuple and all([isinstance(item, Tensor) or type(item) in ATOMS for item in own])
