"""Tiny random LoRA adapters for the tests, in PEFT's format, and the checkpoints that they amount to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

RANK, ALPHA = 4, 8
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_tiny_adapter(folder: Path, checkpoint: Path, *, seed: int = 0) -> Path:
    """Write a random adapter of every linear layer in a checkpoint's decoder, in float32, and return `folder`."""
    generator = torch.Generator().manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tensors = {}
    for path, module in model.named_modules():
        if path.rpartition(".")[2] in TARGETS:
            rows, columns = module.weight.shape
            stem = f"base_model.model.{path}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(RANK, columns, generator=generator) * 0.2
            tensors[f"{stem}.lora_B.weight"] = torch.randn(rows, RANK, generator=generator) * 0.2
    config = {
        "base_model_name_or_path": str(checkpoint),
        "bias": "none",
        "lora_alpha": ALPHA,
        "peft_type": "LORA",
        "r": RANK,
        "target_modules": list(TARGETS),
        "task_type": "CAUSAL_LM",
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_merged(folder: Path, checkpoint: Path, adapter: Path) -> Path:
    """Write the checkpoint that an adapter makes of another, each weight `W + alpha / rank * B @ A`."""
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tensors = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name, down in tensors.items():
            if name.endswith("lora_A.weight"):
                stem = name.removesuffix(".lora_A.weight")
                up = tensors[f"{stem}.lora_B.weight"]
                module = model.get_submodule(stem.removeprefix("base_model.model."))
                module.weight += ALPHA / RANK * up @ down
    model.save_pretrained(folder)
    return folder
