"""Tiny random checkpoints for the tests, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedTokenizerFast, Qwen3Config

NUM_WORDS = 509


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
    shape |= changes
    if family == "qwen3":
        return Qwen3Config(head_dim=32, **shape)
    if family == "llama":
        return LlamaConfig(**shape)
    raise ValueError(f"no tiny model of the family {family!r}")


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
