"""The sampled token as one request may change it: to ids of the vocabulary that its grammar allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnsight._interleave import RowScope
from nnsight.errors import MismatchedValueError

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class TokenScope(RowScope):
    """The row of one request among the sampled ids.

    A change is looked at before it lands, on every rank: the next forward looks the id up in the embedding, where one
    beyond its rows would end the engine, and vLLM ends a request whose grammar does not take its token without saying
    whose doing it was.

    Attributes:
        vocabulary: How many ids the model knows.
        mask: The ids that the request's grammar allows, one bit each, 32 to a word; None without a grammar.
    """

    vocabulary: int = 0
    mask: Any = None

    def check(self, live: torch.Tensor, own: torch.Tensor, where: str) -> None:
        """Refuse rows of another shape, and ids that cannot be continued from."""
        RowScope.check(self, live, own, where)
        self._refuse_unknown(own.flatten().tolist(), where)

    def fill(self, live: torch.Tensor, number: float) -> torch.Tensor:
        """Return a row that holds one id."""
        self._refuse_unknown([number], "samples")
        return RowScope.fill(self, live, number)

    def put(self, live: torch.Tensor, own: torch.Tensor, where: str) -> torch.Tensor:
        """Copy ids into the request's row, where it can be continued from them."""
        self._refuse_unknown(own.flatten().tolist(), where)
        return RowScope.put(self, live, own, where)

    def _refuse_unknown(self, tokens: Sequence[float], where: str) -> None:
        for token in tokens:
            if not 0 <= token < self.vocabulary or token != int(token):
                raise MismatchedValueError(
                    f"{where} was given the token {token}, but the vocabulary of the model has the ids 0 to "
                    f"{self.vocabulary - 1}; give it one of these"
                )
            if self.mask is not None and not _allows(self.mask, int(token)):
                raise MismatchedValueError(
                    f"{where} was given the token {token}, which the grammar of the request's structured output does "
                    "not allow here; leave the grammar out, or edit the logits instead: the grammar chooses among "
                    "what it allows"
                )


def _allows(mask: Any, token: int) -> bool:
    word = token // 32
    return word < len(mask) and bool((int(mask[word]) >> (token % 32)) & 1)
