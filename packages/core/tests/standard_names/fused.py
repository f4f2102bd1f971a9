"""A small decoder that hands its stream on as two tensors, added up in place by the next norm, as vLLM's do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

import nnsight
from nnsight.families import Argument, ModelFamily, StandardValue, find_family

if TYPE_CHECKING:
    from nnsight.events import RootModule

HIDDEN, LAYERS = 4, 3


class FusedNorm(nn.Module):
    """Adds its arguments up in place, and halves their sum."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return x * 0.5, x
        residual += x
        x.copy_(residual * 0.5)
        return x, residual


class FusedLayer(nn.Module):
    """Attention and MLP are one linear map each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = FusedNorm()
        self.mix = nn.Linear(HIDDEN, HIDDEN)
        self.middle_norm = FusedNorm()
        self.mlp = nn.Linear(HIDDEN, HIDDEN)

    def forward(
        self, positions: torch.Tensor, hidden: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, residual = self.norm(hidden, residual)
        hidden, residual = self.middle_norm(self.mix(hidden), residual)
        return self.mlp(hidden), residual


class FusedDecoder(nn.Module):
    """Layers in a row, called as vLLM calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(FusedLayer() for _ in range(LAYERS))
        self.norm = FusedNorm()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        hidden, residual = states * 1, None
        for block in self.blocks:
            hidden, residual = block(torch.arange(len(states)), hidden, residual)
        return self.norm(hidden, residual)[0]


FAMILY = ModelFamily(
    package=__name__.partition(".")[0],
    classes=("FusedDecoder",),
    layers="blocks",
    embed="norm",
    final_norm="norm",
    unembed=None,
    values={
        "resid_pre": StandardValue("", "inputs", Argument(1, "hidden"), plus=Argument(2, "residual")),
        "attn_out": StandardValue("mix", "output"),
        "resid_mid": StandardValue("middle_norm", "inputs", Argument(0, "x"), plus=Argument(1, "residual")),
        "resid_post": StandardValue("", "output", 0, plus=1),
    },
)


class FusedPlugin:
    """Answers for the decoder."""

    @nnsight.hookimpl
    def resolve_standard_names(self, root: RootModule) -> ModelFamily | None:
        return find_family([FAMILY], root.module)
