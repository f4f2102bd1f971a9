"""Putting a value in the place of a call, and not making the call where nobody else needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nnsight._interleave.run import UNSEEN
from nnsight._interleave.structure import map_tensors
from nnsight._interleave.visit import MISSING

if TYPE_CHECKING:
    from nnsight._interleave.interleaver import Interleaver
    from nnsight._interleave.passage import Passage


@dataclass(frozen=True, slots=True)
class Seen:
    """What a call returned once, without its contents.

    Attributes:
        value: The structure, in which each tensor is one element expanded to its shape.
        total: Rows of the batch at the time.
    """

    value: object
    total: int

    @classmethod
    def of(cls, value: object, total: int) -> Seen:
        """Keep the structure of a value."""
        return cls(map_tensors(value, lambda tensor: tensor.new_empty(()).expand(tensor.shape)), total)

    def blank(self, total: int) -> object:
        """Return zeros as the call would return them for a batch of so many rows."""

        def zeros(like: torch.Tensor) -> torch.Tensor:
            by_row = like.dim() and like.shape[0] == self.total
            return like.new_zeros((total, *like.shape[1:]) if by_row else like.shape)

        return map_tensors(self.value, zeros)


def run_with_skips(
    hub: Interleaver,
    passage: Passage,
    original: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> object:
    """Serve the blocks that put a value in the place of a call.

    A value has to fit what the call returns, so a request that owns the whole batch spares a call of a kind that was
    made before; in-process anything goes, and the call is not made. A call that keeps something for later steps, such
    as keys and values, is made all the same.
    """
    due = hub.due(passage.skips)
    if not due:
        return passage.run(original, args, kwargs)
    scopes = [hub.scope_at(passage, run) for run in due]
    total, kinds = scopes[0].total, _kinds(args, kwargs)
    spared = len(due) == 1 and scopes[0].alone and not hub.keeps_state(passage, original)
    live: object = UNSEEN
    if total is not None:
        spared = spared and kinds in passage.seen
        if spared:
            live = passage.seen[kinds].blank(total)
    if not spared:
        live = passage.run(original, args, kwargs)
        if total is not None:
            passage.seen[kinds] = Seen.of(live, total)
    for run, scope in zip(due, scopes, strict=True):
        passage.skips.remove(run)
        landed = run.serve_skip(live, scope)
        if landed is not MISSING:
            live = landed
        elif spared:
            # The value did not fit, which is that block's error; the model needs one that does.
            live = passage.run(original, args, kwargs)
        hub.enlist(run)
    return live


def _kinds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Tell calls apart that may return different structures."""
    named = tuple((name, _kind(value)) for name, value in kwargs.items())
    return (tuple(map(_kind, args)), named)


def _kind(value: object) -> object:
    return value.dim() if isinstance(value, torch.Tensor) else type(value)
