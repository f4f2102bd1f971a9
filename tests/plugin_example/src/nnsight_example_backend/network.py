"""The model: a causal transformer that computes the rows of several requests at once.

Shape suffixes: T = rows of the batch, R = rows of one request, P = rows of its past and present, H = hidden,
V = vocabulary, A = attention heads, D = hidden / heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, HIDDEN, HEADS, LAYERS, LONGEST = 64, 32, 4, 4, 256


@dataclass
class Span:
    """One request's place in a batch, and the keys and values of its earlier rows.

    Attributes:
        start: Its first row in the batch under way.
        stop: One past its last row.
        past: Keys and values [P, H] by the number of the layer.
    """

    start: int = 0
    stop: int = 0
    past: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class Attention(nn.Module):
    """Each row looks at itself and the earlier rows of its own request."""

    def __init__(self, number: int, batch: list[Span]) -> None:
        """Make random weights.

        Args:
            number: Which layer this is.
            batch: The spans of the batch under way. Not an argument of `forward`, because a block sees those: it must
                see its own request alone.
        """
        super().__init__()
        self.number = number
        self.batch = batch
        self.joined = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, states_TH: Tensor) -> Tensor:
        """Mix rows, [T, H] to [T, H]."""
        joined = self.joined(states_TH)
        mixed = torch.cat([self._attend(span, joined[span.start : span.stop]) for span in self.batch])
        out_TH: Tensor = self.out(mixed)
        return out_TH

    def _attend(self, span: Span, joined: Tensor) -> Tensor:
        query_RH, *present = joined.chunk(3, -1)
        past = span.past.get(self.number)
        key_PH, value_PH = present if past is None else [torch.cat(pair) for pair in zip(past, present, strict=True)]
        span.past[self.number] = key_PH, value_PH
        rows, total = len(query_RH), len(key_PH)
        seen = torch.ones(rows, total, dtype=torch.bool).tril(total - rows)
        query_ARD, key_APD, value_APD = (
            tensor.view(-1, HEADS, HIDDEN // HEADS).transpose(0, 1) for tensor in (query_RH, key_PH, value_PH)
        )
        mixed = functional.scaled_dot_product_attention(query_ARD, key_APD, value_APD, attn_mask=seen)
        return mixed.transpose(0, 1).flatten(-2)


def activate(states: Tensor) -> Tensor:
    """Apply the activation function of the feed-forward part."""
    return torch.tanh(states)


class FeedForward(nn.Module):
    """Changes each row by itself."""

    def __init__(self) -> None:
        """Make random weights."""
        super().__init__()
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, states_TH: Tensor) -> Tensor:
        """Return the change, [T, H] to [T, H]."""
        change_TH: Tensor = self.down(activate(self.up(states_TH)))
        return change_TH


class Layer(nn.Module):
    """Attention and feed-forward part, each added to the hidden states."""

    def __init__(self, number: int, batch: list[Span]) -> None:
        """Make random weights; see `Attention`."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(HIDDEN)
        self.attention = Attention(number, batch)
        self.mlp_norm = nn.LayerNorm(HIDDEN)
        self.mlp = FeedForward()

    def forward(self, states_TH: Tensor) -> Tensor:
        """Return the hidden states that leave the layer, [T, H] to [T, H]."""
        mixed_TH: Tensor = states_TH + self.attention(self.attention_norm(states_TH))
        left_TH: Tensor = mixed_TH + self.mlp(self.mlp_norm(mixed_TH))
        return left_TH


class Network(nn.Module):
    """Embeddings, layers and a head."""

    def __init__(self) -> None:
        """Make random weights."""
        super().__init__()
        self.batch: list[Span] = []
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(LONGEST, HIDDEN)
        self.layers = nn.ModuleList(Layer(number, self.batch) for number in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """Return logits [T, V] of the rows whose spans `enter` was given."""
        states_TH: Tensor = self.tokens(ids_T) + self.positions(positions_T)
        for layer in self.layers:
            states_TH = layer(states_TH)
        logits_TV: Tensor = self.head(self.norm(states_TH))
        return logits_TV

    def enter(self, spans: Sequence[Span]) -> None:
        """Say whose rows the next forward computes."""
        self.batch[:] = spans


def build_network(seed: int) -> Network:
    """Build the network with the weights that belong to a seed."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return Network().eval()
