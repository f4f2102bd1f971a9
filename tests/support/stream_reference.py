"""The residual stream of a Transformers model, taken with plain torch hooks: what standard names are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

NAMES = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")

# Where each family has its layers; in a layer, what is added by attention, the norm before the MLP, what the MLP adds.
_PLACES = {
    "gpt2": ("transformer.h", "attn", "ln_2", "mlp"),
    "gemma2": ("model.layers", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "gemma3": ("model.layers", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
}
_DEFAULT = ("model.layers", "self_attn", "post_attention_layernorm", "mlp")

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2", "qwen2_moe", "qwen3_moe")

Values = dict[str, torch.Tensor]


@dataclass
class Streams:
    """What one greedy generation computed.

    Attributes:
        layers: Standard values of each layer, `layers[step][layer][name]` of [rows, hidden].
        unembedded: What the unembedding returns, [step] of [rows, vocabulary].
        logits: The model's logits, which some families cap, [step] of [rows, vocabulary].
        tokens: Generated ids.
    """

    layers: list[list[Values]] = field(default_factory=list)
    unembedded: list[torch.Tensor] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Addition:
    """A vector that is added to every row of one standard value.

    Attributes:
        layer: Index of the layer.
        name: The standard value.
        vector: [hidden].
    """

    layer: int
    name: str
    vector: torch.Tensor


class StreamReference:
    """Runs a checkpoint in Transformers, float32 on the CPU."""

    def __init__(self, folder: Path, family: str) -> None:
        """Load the checkpoint."""
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._layers, self._attention, self._norm, self._mlp = _PLACES.get(family, _DEFAULT)

    @torch.no_grad()
    def generate(
        self,
        ids: Sequence[int],
        steps: int,
        addition: Addition | None = None,
        *,
        tokens: Sequence[int] | None = None,
    ) -> Streams:
        """Generate greedily, or go on with `tokens` whatever the logits are.

        Each step computes the whole sequence again, and keeps the rows that are new in it.
        """
        found = Streams()
        rows, current = len(ids), list(ids)
        self._found: list[Values] = []
        head = self.model.get_output_embeddings()
        handles = [
            head.register_forward_hook(lambda module, args, output: found.unembedded.append(output[0, -rows:].clone()))
        ]
        for index, layer in enumerate(self.model.get_submodule(self._layers)):
            self._found.append({})
            own = addition if addition is not None and addition.layer == index else None
            handles += self._watch(layer, index, own)
        try:
            for step in range(steps):
                logits = self.model(input_ids=torch.tensor([current]), use_cache=False).logits[0]
                found.layers.append([{name: value[-rows:] for name, value in one.items()} for one in self._found])
                found.logits.append(logits[-rows:])
                found.tokens.append(int(logits[-1].argmax()))
                current.append(found.tokens[-1] if tokens is None else tokens[step])
                rows = 1
        finally:
            for handle in handles:
                handle.remove()
        return found

    def _watch(self, layer: Any, index: int, addition: Addition | None) -> list[Any]:
        kept = self._found[index]

        def changed(name: str, states: torch.Tensor) -> torch.Tensor:
            if addition is not None and addition.name == name:
                states = states + addition.vector
            kept[name] = states[0].clone()
            return states

        def before(name: str) -> Any:
            def hook(module: Any, args: Any, kwargs: Any) -> Any:
                if args:
                    return (changed(name, args[0]), *args[1:]), kwargs
                return args, {**kwargs, "hidden_states": changed(name, kwargs["hidden_states"])}

            return hook

        def after(name: str) -> Any:
            def hook(module: Any, args: Any, output: Any) -> Any:
                states = output[0] if isinstance(output, tuple) else output
                if name == "resid_post" and addition is not None and addition.name == "resid_mid":
                    # What is added to the input of the norm passes the sum after the MLP by.
                    states = states + addition.vector
                states = changed(name, states)
                return (states, *output[1:]) if isinstance(output, tuple) else states

            return hook

        return [
            layer.register_forward_pre_hook(before("resid_pre"), with_kwargs=True),
            layer.get_submodule(self._attention).register_forward_hook(after("attn_out")),
            layer.get_submodule(self._norm).register_forward_pre_hook(before("resid_mid"), with_kwargs=True),
            layer.get_submodule(self._mlp).register_forward_hook(after("mlp_out")),
            layer.register_forward_hook(after("resid_post")),
        ]
