"""A small causal decoder that generates with a state, so that prompts and steps look as they do in an engine."""

from __future__ import annotations

import torch
from torch import nn

VOCABULARY, HIDDEN, LAYERS = 40, 16, 4


def mix(own: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    """Join what a row says with what the rows before it said, [rows, hidden] each."""
    return torch.tanh(own + past)


class Layer(nn.Module):
    """Mixes each row with the mean of the rows before it."""

    def __init__(self) -> None:
        """Make random weights."""
        super().__init__()
        self.own = nn.Linear(HIDDEN, HIDDEN)
        self.past = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, states: torch.Tensor, total: torch.Tensor, count: int) -> torch.Tensor:
        """Return the states [rows, hidden], and add them to `total` [hidden] in place."""
        sums = total + states.cumsum(0)
        counts = torch.arange(count + 1, count + len(states) + 1).unsqueeze(1)
        total.copy_(sums[-1].detach())
        return states + mix(self.own(states), self.past(sums / counts))


class Decoder(nn.Module):
    """Embedding, layers and a head."""

    def __init__(self) -> None:
        """Make random weights."""
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, ids: torch.Tensor, totals: torch.Tensor, count: int) -> torch.Tensor:
        """Return logits [rows, vocabulary]."""
        states = self.embed(ids)
        for layer, total in zip(self.layers, totals, strict=True):
            states = layer(states, total, count)
        return self.head(states)

    @torch.no_grad()
    def generate(self, ids: torch.Tensor, steps: int) -> list[int]:
        """Generate greedily."""
        totals, count, tokens = torch.zeros(LAYERS, HIDDEN), 0, []
        for _ in range(steps):
            logits = self(ids, totals, count)
            count += len(ids)
            ids = logits[-1:].argmax(-1)
            tokens.append(int(ids))
        return tokens
