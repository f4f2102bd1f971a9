"""What a backend tells the conformance suite about a model of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from nnsight._trace import TracedModel

# How many steps the longer traces of the suite run.
STEPS = 4

Edit = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Reference:
    """What the same network computes without the backend.

    Attributes:
        streams: The hidden states that leave each layer: `streams[step][layer]`, [rows, hidden].
        tokens: The token ids generated, one per step.
    """

    streams: Sequence[Sequence[torch.Tensor]]
    tokens: Sequence[int]


@dataclass(frozen=True)
class LayerOps:
    """What there is to look into below each layer.

    Attributes:
        child: Name of a child of the layer. It returns one tensor, [rows, hidden], and keeps nothing for later steps.
        inner: Path of a module below the child, or the child's own op, that is reached whenever the child runs.
        call: The op of the layer's forward that calls the child.
        nested: Path below the layer of a module (`""` for the layer itself), an op of its forward that calls a Python
            function, and the op of that function whose value it returns.
    """

    child: str
    inner: str
    call: str
    nested: tuple[str, str, str]


@dataclass(frozen=True)
class Subject:
    """A small causal language model on a backend, and the same network outside it.

    Attributes:
        model: The traced model.
        prompts: At least three prompts of different lengths, each the positional arguments of a trace.
        lengths: The number of rows of each prompt.
        layers: Paths of the layers, in the order in which they run; at least three.
        hidden_size: Width of the hidden states.
        keywords: Keywords of a trace that generates greedily for so many steps, whatever is sampled.
        stream: Turns a layer's output into the hidden states that leave it; travels with blocks.
        add: Adds a tensor to the hidden states that leave a layer, in place; takes the layer's envoy; travels.
        replace: Replaces the hidden states that leave a layer; takes the envoy and the new states; travels.
        ops: What there is to look into below each layer.
        reference: Computes what the network does for a prompt in so many steps, with edits of hidden states by layer.
        tokens: The generated ids of a result.
        tolerance: Largest absolute difference between the backend and its reference.
        standard_names: Whether a plugin knows where the model has the standard names `layers`, `resid_pre` and
            `resid_post`; without one, their refusal is what is tested.
        edits: Whether the backend has `model.edit()`; without, its refusal is what is tested.
    """

    model: TracedModel
    prompts: Sequence[tuple[Any, ...]]
    lengths: Sequence[int]
    layers: Sequence[str]
    hidden_size: int
    keywords: Callable[[int], Mapping[str, Any]]
    stream: Callable[[Any], torch.Tensor]
    add: Callable[[Any, torch.Tensor], None]
    replace: Callable[[Any, torch.Tensor], None]
    ops: LayerOps
    reference: Callable[[tuple[Any, ...], int, Mapping[int, Edit]], Reference]
    tokens: Callable[[Any], list[int]]
    tolerance: float = 1e-4
    standard_names: bool = True
    edits: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)
