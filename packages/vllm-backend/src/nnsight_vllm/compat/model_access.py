"""The model in a worker: its modules, how to call them ad hoc, and which of their values are whole on each rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, Literal

import torch
from torch import nn

from nnsight.errors import UnsupportedFeatureError

# A device that the engine has for itself still holds so much of a block's values.
_LEAST_BYTES: Final = 1 << 30


class WorkerModel:
    """What a session asks about the model that its runner holds."""

    def __init__(self, runner: Any, vllm_config: Any, rank: int) -> None:
        """Look at a runner; its model is loaded later."""
        self._runner = runner
        self._config = vllm_config
        self.rank = rank

    @property
    def root(self) -> nn.Module:
        """The model."""
        model = self._runner.get_model()
        assert isinstance(model, nn.Module)
        return model

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        device: torch.device = self._runner.device
        return device

    @property
    def runner_generation(self) -> Literal["V1", "V2"]:
        """Which of vLLM's model runners runs the model."""
        return "V2" if self._runner.nnsight_generation == "V2" else "V1"

    def note_progress(self) -> Callable[[], None]:
        """Note what this rank's device has been given to do, and return a function that waits until it is done.

        The function may be called in another thread; it waits for nothing that the device is given later.
        """
        if self.device.type != "cuda":
            return lambda: None
        event: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        wait: Callable[[], None] = event.synchronize
        return wait

    def enter_thread(self) -> None:
        """Make the calling thread use this rank's device, on a stream of its own."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.cuda.set_stream(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]

    @property
    def shares_host(self) -> bool:
        """Whether the client runs on the same host, as it does unless Ray or several nodes are used."""
        parallel = self._config.parallel_config
        return parallel.distributed_executor_backend in (None, "uni", "mp") and getattr(parallel, "nnodes", 1) == 1

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return int(self._config.model_config.get_vocab_size())

    @property
    def spare_bytes(self) -> int:
        """How many bytes of this rank's device the engine leaves to others, or a quarter of the memory of a host."""
        if self.device.type == "cuda":
            total = int(torch.cuda.get_device_properties(self.device).total_memory)
            return max(int(total * (1.0 - float(self._config.cache_config.gpu_memory_utilization))), _LEAST_BYTES)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4

    @property
    def tensor_parallel_size(self) -> int:
        """How many ranks share each layer."""
        return int(self._config.parallel_config.tensor_parallel_size)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return load_tokenizer(self._config.model_config)


def load_tokenizer(model_config: Any) -> Any:
    """Load the tokenizer that an engine with this configuration uses."""
    from vllm.tokenizers import cached_tokenizer_from_config

    return cached_tokenizer_from_config(model_config)


def call_ad_hoc(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module on values of a block's own, which vLLM's in-place kernels must not change.

    `lm_head`, whose forward vLLM never calls, gives the logits of hidden states.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    if _has_adapters(module):
        raise UnsupportedFeatureError(
            f"{type(module).__name__} holds layers that adapters change, and vLLM tells by the row of the batch which "
            "adapter changes what, so it cannot be called ad hoc; call the base_layer of each such layer, which no "
            "adapter changes, or the parts that hold none"
        )
    if keeps_state(module):
        raise UnsupportedFeatureError(
            f"{type(module).__name__} writes the keys and values of the running request when it is called, so it "
            "cannot be called ad hoc; call the parts of it that hold no attention"
        )
    own = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    named = {name: arg.clone() if isinstance(arg, torch.Tensor) else arg for name, arg in kwargs.items()}
    with torch.no_grad():
        # A head that is tied to the embedding is the embedding itself, told by what it is given.
        if isinstance(module, VocabParallelEmbedding) and own and own[0].is_floating_point():
            return _logits(module, *own, **named)
        return module(*own, **named)


def _has_adapters(module: nn.Module) -> bool:
    """Tell whether a module is, or holds, a layer that was wrapped because the engine takes adapters."""
    from vllm.lora.layers import BaseLayerWithLoRA

    return any(isinstance(part, BaseLayerWithLoRA) for part in module.modules())


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return a layer without what was wrapped around it because the engine takes adapters."""
    from vllm.lora.layers import BaseLayerWithLoRA

    if isinstance(module, BaseLayerWithLoRA):
        base = module.base_layer
        assert isinstance(base, nn.Module)
        return base
    return module


def keeps_state(module: nn.Module) -> bool:
    """Tell whether a module, or one below it, writes the cache of the running requests when it is called."""
    return any(hasattr(part, "kv_cache") for part in module.modules())


def _logits(head: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Compute logits of hidden states, [..., hidden] to [..., vocabulary], as `LogitsProcessor` does before scaling.

    Source:
        vLLM 0.27.1, model_executor/layers/logits_processor.py, LogitsProcessor._get_logits
    """
    from vllm.distributed import tensor_model_parallel_all_gather

    logits: torch.Tensor = head.quant_method.apply(head, hidden.to(head.weight.dtype), bias=getattr(head, "bias", None))
    logits = tensor_model_parallel_all_gather(logits)
    return logits[..., : head.org_vocab_size]


def sharded_sides(root: nn.Module) -> dict[str, frozenset[str]]:
    """Return which sides of which modules hold only a rank's share, when ranks share each layer.

    A parent that splits its work (a column-parallel child, a row-parallel one) holds shares between the two: its
    children's inputs and outputs are shares, but for the input of the first and the output of the last.
    """
    from vllm.model_executor.layers.linear import ColumnParallelLinear, ReplicatedLinear, RowParallelLinear

    sharded: dict[str, frozenset[str]] = {}
    both = frozenset({"input", "inputs", "output"})
    for path, parent in root.named_modules(remove_duplicate=False):
        children = list(parent.named_children())
        if not any(isinstance(_unwrapped(child), ColumnParallelLinear) for _, child in children):
            continue
        for name, child in children:
            sides, layer = both, _unwrapped(child)
            if isinstance(layer, ReplicatedLinear):
                continue
            if isinstance(layer, ColumnParallelLinear):
                sides = frozenset({"output"})
            elif isinstance(layer, RowParallelLinear):
                sides = frozenset({"input", "inputs"}) if layer.reduce_results else both
            full = f"{path}.{name}" if path else name
            for below, _ in child.named_modules(prefix=full):
                sharded[below] = sides if below == full else both
    return sharded
