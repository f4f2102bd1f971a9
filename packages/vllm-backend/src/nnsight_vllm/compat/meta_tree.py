"""The module tree of a model without its weights, without a device, and without a process group."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn

_GROUPS = ("_WORLD", "_TP", "_ETP", "_PP", "_DP", "_EP", "_DCP", "_PCP", "_EPLB")


@dataclass(frozen=True)
class _LoneGroup:
    """A process group of this process alone, for modules that ask how many ranks there are."""

    world_size: int = 1
    rank: int = 0
    rank_in_group: int = 0
    local_rank: int = 0
    ranks: tuple[int, ...] = (0,)
    is_first_rank: bool = True
    is_last_rank: bool = True
    first_rank: int = 0
    last_rank: int = 0

    @property
    def device_group(self) -> _LoneGroup:
        """The group as PyTorch has it, which modules with experts ask for its size."""
        return self

    def size(self) -> int:
        """How many ranks there are."""
        return self.world_size


def build_meta_tree(repo: str, keywords: Mapping[str, Any]) -> nn.Module:
    """Build a model's module tree on the meta device, whole, as one rank would hold it.

    Args:
        repo: Repository id or folder of the checkpoint.
        keywords: Keywords of the engine.

    Source:
        vLLM 0.27.1, model_executor/model_loader/utils.py, initialize_model
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    with _quiet():
        own = {name: value for name, value in keywords.items() if not name.endswith("parallel_size")}
        config = EngineArgs(model=repo, **{**own, "enforce_eager": True}).create_engine_config()
        with (
            _lone_groups(),
            _own_rope_cache(),
            set_default_torch_dtype(config.model_config.dtype),
            torch.device("meta"),
        ):
            module: nn.Module = initialize_model(config)
            if config.lora_config is not None:
                _wrap_for_adapters(module, config)
    return module.eval()


def _wrap_for_adapters(module: nn.Module, config: Any) -> None:
    """Wrap those layers that a worker wraps when adapters are enabled, so that paths and ops are the same there.

    Source:
        vLLM 0.27.1, lora/model_manager.py, LoRAModelManager, which also loads and chooses adapters
    """
    from vllm.lora import model_manager

    wrap = model_manager.from_layer

    def wrap_if_possible(layer: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        try:
            return wrap(layer, *args, **kwargs)
        except AssertionError:
            # Experts are asked for their kernel, which is chosen when they have weights.
            return layer

    scheduler = config.scheduler_config
    with (
        # What applies adapters to rows is needed in a forward alone.
        mock.patch.object(model_manager, "get_punica_wrapper", return_value=object()),
        mock.patch.object(model_manager, "from_layer", wrap_if_possible),
    ):
        model_manager.LoRAModelManager(
            model=module,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            vocab_size=config.model_config.get_vocab_size(),
            lora_config=config.lora_config,
            device=torch.device("meta"),
            vllm_config=config,
        )
    # The manager leads back to the module, and would keep both.
    del module.lora_manager


@contextlib.contextmanager
def _lone_groups() -> Iterator[None]:
    """Stand in for vLLM's process groups while modules are built, and leave none behind."""
    from vllm.distributed import parallel_state

    before = {name: getattr(parallel_state, name) for name in _GROUPS if hasattr(parallel_state, name)}
    for name in before:
        if before[name] is None:
            setattr(parallel_state, name, _LoneGroup())
    try:
        yield
    finally:
        for name, group in before.items():
            setattr(parallel_state, name, group)


@contextlib.contextmanager
def _own_rope_cache() -> Iterator[None]:
    """Keep meta modules out of vLLM's cache of rotary embeddings, which a forked engine inherits.

    Source:
        vLLM 0.27.1, model_executor/layers/rotary_embedding/__init__.py, get_rope
    """
    from vllm.model_executor.layers import rotary_embedding

    cache: dict[Any, Any] = rotary_embedding._ROPE_DICT
    before = dict(cache)
    cache.clear()
    try:
        yield
    finally:
        cache.clear()
        cache.update(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the log lines of an engine that is not being built from the user."""
    logger = logging.getLogger("vllm")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
