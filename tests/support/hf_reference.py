"""The same checkpoint in Transformers, float32 on the CPU, generating with torch hooks on its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

Edit = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Generation:
    """What one greedy generation computed.

    Attributes:
        streams: Hidden states that leave each layer, [step][layer] of [rows, hidden].
        outputs: Outputs of other modules by path, [step] of [rows, width].
        logits: [step] of [vocabulary].
        tokens: Generated ids.
    """

    streams: list[list[torch.Tensor]] = field(default_factory=list)
    outputs: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    logits: list[torch.Tensor] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class HFReference:
    """Runs a checkpoint in Transformers."""

    def __init__(self, folder: Path) -> None:
        """Load the checkpoint."""
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def generate(
        self, ids: Sequence[int], steps: int, edits: Mapping[int, Edit] | None = None, watch: Sequence[str] = ()
    ) -> Generation:
        """Generate greedily, editing the hidden states that leave some layers.

        Each step computes the whole sequence again, and keeps the rows that are new in it, so edits must treat every
        row alike.
        """
        edits = edits or {}
        found = Generation(outputs={path: [] for path in watch})
        rows = len(ids)
        handles = []

        def layer_hook(index: int) -> Any:
            def hook(module: torch.nn.Module, args: Any, output: Any) -> Any:
                states = output[0] if isinstance(output, tuple) else output
                if index in edits:
                    states = edits[index](states[0])[None]
                found.streams[-1].append(states[0, -rows:].clone())
                return (states, *output[1:]) if isinstance(output, tuple) else states

            return hook

        def watch_hook(path: str) -> Any:
            def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
                value = output[0] if isinstance(output, tuple) else output
                found.outputs[path].append(value[0, -rows:].clone())

            return hook

        for index, layer in enumerate(self.model.model.layers):
            handles.append(layer.register_forward_hook(layer_hook(index)))
        for path in watch:
            handles.append(self.model.get_submodule(path).register_forward_hook(watch_hook(path)))
        try:
            current = list(ids)
            for _ in range(steps):
                found.streams.append([])
                logits = self.model(input_ids=torch.tensor([current]), use_cache=False).logits[0, -1]
                found.logits.append(logits)
                found.tokens.append(int(logits.argmax()))
                current.append(found.tokens[-1])
                rows = 1
        finally:
            for handle in handles:
                handle.remove()
        return found
