"""Train the demo model from scratch on the CPU and write the checkpoint.

python train.py DIRECTORY [--steps 2400]
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import facts
import tokenizer as tok
import torch
from corpus import Corpus
from torch.nn import functional
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SEED = 0
ROWS, LENGTH = 32, 64  # one batch


def make_config(vocab_size: int) -> Qwen3Config:
    """The architecture: small enough for 8 MB in bfloat16, deep enough to read layer by layer."""
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=448,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        use_cache=True,
        dtype="float32",
    )


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, then a half cosine down to a fiftieth of the peak."""
    warm = 100
    if step < warm:
        return peak * (step + 1) / warm
    part = (step - warm) / max(1, steps - warm)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * part)))


def make_optimizer(model: Qwen3ForCausalLM, peak: float) -> torch.optim.AdamW:
    """AdamW; only matrices decay."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98), fused=True)


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write weights in bfloat16, configuration, tokenizer and generation configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    copy = Qwen3ForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    copy.config.dtype = torch.bfloat16
    copy.generation_config = GenerationConfig(do_sample=False, eos_token_id=0, pad_token_id=0)
    copy.save_pretrained(directory)
    model.config.dtype = torch.float32
    tok.save(tokenizer, directory)
    for path in directory.iterdir():
        path.chmod(0o644)


def train(directory: Path, steps: int, peak: float) -> None:
    """Train for ``steps`` batches; the checkpoint in ``directory`` is renewed every 600 steps."""
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    tokenizer = tok.build()
    tok.check(tokenizer)
    model = Qwen3ForCausalLM(make_config(len(tokenizer)))
    model.set_attn_implementation("eager")  # on a CPU faster than the fused kernel, whose backward is slow
    compiled = torch.compile(model)
    print(f"{model.num_parameters():,} parameters, vocabulary {len(tokenizer)}")
    optimizer = make_optimizer(model, peak)
    corpus = Corpus(facts.held_out(), SEED)
    begin = time.monotonic()
    model.train()
    for step in range(steps):
        if step % 100 == 0:
            pool = corpus.rows(tokenizer, 100 * ROWS, LENGTH)
        batch = pool[(step % 100) * ROWS :][:ROWS]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = compiled(batch, use_cache=False).logits
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            seconds = time.monotonic() - begin
            print(f"step {step} loss {loss.item():.4f} seconds {seconds:.0f}")
        if (step + 1) % 600 == 0 or step == steps - 1:
            save(model, tokenizer, directory)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--peak", type=float, default=2e-3, help="highest learning rate")
    args = parser.parse_args()
    train(args.directory, args.steps, args.peak)


if __name__ == "__main__":
    main()
