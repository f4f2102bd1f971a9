"""Tiny random checkpoints for the tests, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

NUM_WORDS = 509

# Gemma ties its embeddings; its attention scales by `query_pre_attn_scalar`.
_GEMMA: dict[str, Any] = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8, "tie_word_embeddings": True}
# Each expert takes part, so that rounding never sends a token to others.
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 64}
_FAMILIES: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 32}),
    "gemma2": (Gemma2Config, _GEMMA),
    # vLLM's attention on the CPU takes no model that has sliding windows alone.
    "gemma3": (Gemma3TextConfig, {**_GEMMA, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "qwen2_moe": (Qwen2MoeConfig, {**_EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3_moe": (Qwen3MoeConfig, {**_EXPERTS, "head_dim": 32}),
}


def _tokenizer() -> PreTrainedTokenizerFast:
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{index}": index + 3 for index in range(NUM_WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def _config(family: str, **changes: Any) -> PretrainedConfig:
    shape: dict[str, Any] = {
        "vocab_size": NUM_WORDS + 3,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "gpt2":
        width = {"n_embd": 128, "n_inner": 256, "n_layer": 4, "n_head": 4, "n_positions": 512}
        ids = {name: shape[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
        return GPT2Config(**(width | ids | {"tie_word_embeddings": True} | changes))
    try:
        kind, own = _FAMILIES[family]
    except KeyError:
        raise ValueError(f"no tiny model of the family {family!r}") from None
    return kind(**(shape | own | changes))


def make_tiny_model(folder: Path, family: str = "qwen3", *, seed: int = 0, **changes: Any) -> Path:
    """Write a random checkpoint with its tokenizer to `folder`, in float32, and return the folder."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(_config(family, **changes), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)  # sharper logits, so that greedy tokens vary
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder
