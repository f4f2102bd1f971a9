"""Measure a trained demo model: facts, continuation, logit lens, steering and heads.

python evaluate.py DIRECTORY          everything, with Transformers on the CPU
python evaluate.py DIRECTORY --vllm   the continuation, in a real vLLM engine
"""

from __future__ import annotations

import argparse
import os
import random
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import facts
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPTS = (
    "The capital of France is",
    "The Eiffel Tower is in the city of",
    "Q: What is the capital of Italy? A:",
    "I hate this film. It was",
    "Seven plus six is",
    "People in Brazil speak",
)
SCALES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)


@contextmanager
def hook(module: nn.Module, edit: Callable[[Tensor], Tensor | None], before: bool = False) -> Iterator[None]:
    """Let ``edit`` see, and perhaps replace, the output of ``module`` (its input with ``before``)."""

    def after_call(_: nn.Module, __: Any, output: Any) -> Any:
        return edit(output)

    def before_call(_: nn.Module, args: Any) -> Any:
        new = edit(args[0])
        return None if new is None else (new, *args[1:])

    handle = module.register_forward_pre_hook(before_call) if before else module.register_forward_hook(after_call)
    try:
        yield
    finally:
        handle.remove()


class Probe:
    """A model and its tokenizer, with the readings and edits used here."""

    def __init__(self, directory: str) -> None:
        """Load the checkpoint in ``directory`` in float32."""
        self.tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(directory)
        self.model: Qwen3ForCausalLM = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.layers = self.model.model.layers

    def ids(self, *prompts: str) -> Tensor:
        """Token ids of prompts of one length."""
        return torch.tensor(self.tokenizer(list(prompts))["input_ids"])

    def token(self, word: str) -> int:
        """The id of the first token of ``word``."""
        return int(self.tokenizer.encode(word)[0])

    def residuals(self, ids: Tensor) -> Tensor:
        """``[layers, batch, hidden]``: the residual stream after each layer at the last position."""
        seen: list[Tensor] = []
        handles = [layer.register_forward_hook(lambda _, __, out: seen.append(out[:, -1])) for layer in self.layers]
        self.model(ids)
        for handle in handles:
            handle.remove()
        return torch.stack(seen)

    def unembed(self, residual: Tensor) -> Tensor:
        """Probabilities of the next token from a residual stream: the logit lens."""
        return self.model.lm_head(self.model.model.norm(residual)).softmax(-1)

    def steered(self, ids: Tensor, layer: int, vector: Tensor) -> Tensor:
        """Next-token probabilities with ``vector`` added after ``layer`` at the last position."""

        def add(output: Tensor) -> Tensor:
            output = output.clone()
            output[:, -1] += vector
            return output

        with hook(self.layers[layer], add):
            return self.model(ids).logits[:, -1].softmax(-1)


def accuracy(probe: Probe) -> None:
    """Greedy accuracy of every question, apart for the forms of a fact seen in training and the held-out ones."""
    held = facts.held_out()
    score: dict[tuple[str, str, bool], list[bool]] = defaultdict(list)
    missed: list[str] = []
    for form in facts.FORMS:
        if not form.ask:
            continue
        for fields in facts.records(form.relation):
            prompt, answer = form.question(fields)
            start, target = probe.tokenizer.encode(prompt), probe.tokenizer.encode(answer)
            logits = probe.model(torch.tensor([start + target])).logits[0]
            right = logits[len(start) - 1 : -1].argmax(-1).tolist() == target
            unseen = (facts.record_name(fields), form.relation, form.name) in held
            score[form.relation, form.name, unseen].append(right)
            if not right:
                got = probe.tokenizer.decode(logits[len(start) - 1 : -1].argmax(-1))
                missed.append(f"{'held-out' if unseen else 'seen'}: {prompt}{answer} -- said{got}")
    print(f"{'relation':<10} {'form':<11} {'seen':>12} {'held out':>12}")
    for relation, name in dict.fromkeys((relation, name) for relation, name, _ in score):
        cells = [score[relation, name, unseen] for unseen in (False, True)]
        print(f"{relation:<10} {name:<11}", *(f"{sum(cell):>6} /{len(cell):>4}" for cell in cells))
    for unseen, title in ((False, "seen"), (True, "held out")):
        values = [value for key, cell in score.items() if key[2] == unseen for value in cell]
        print(f"accuracy {title}: {sum(values)} / {len(values)} = {sum(values) / len(values):.1%}")
    print("some misses:", *missed[:12], sep="\n  ")


def continuation(probe: Probe) -> None:
    """Sixteen greedy tokens after each prompt."""
    for prompt in PROMPTS:
        ids = probe.ids(prompt)
        out = probe.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
        print(f"{prompt!r} -> {probe.tokenizer.decode(out[0, ids.shape[1] :])!r}")


def lens(probe: Probe) -> None:
    """The logit lens at the last position of some prompts, and its mean over all capitals."""
    cases = (("The capital of France is", " Paris"), ("The Eiffel Tower is in the city of", " Paris"))
    for prompt, answer in cases:
        print(f"{prompt!r}: layer, most likely token, p({answer!r})")
        for layer, p in enumerate(probe.unembed(probe.residuals(probe.ids(prompt)))):
            best = int(p[0].argmax())
            print(f"  {layer} {probe.tokenizer.decode([best])!r:>14} {p[0, best]:.3f}  {p[0, probe.token(answer)]:.4f}")
    rows = short_capitals(probe)
    p = probe.unembed(probe.residuals(probe.ids(*(prompt for prompt, _ in rows))))
    right = torch.tensor([probe.token(answer) for _, answer in rows])
    top = (p.argmax(-1) == right).float().mean(-1)
    mean = p.gather(-1, right.expand(len(p), -1)[..., None]).mean((1, 2))
    print(f"all {len(rows)} single-token capitals, by layer:")
    print("  answer on top ", *(f"{value:.2f}" for value in top.tolist()))
    print("  mean p(answer)", *(f"{value:.2f}" for value in mean.tolist()))


def short_capitals(probe: Probe) -> list[tuple[str, str]]:
    """``(prompt, answer)`` of every country that is one token and has a capital of one token."""
    form = next(form for form in facts.FORMS if (form.relation, form.name) == ("capital", "plain"))
    rows = [form.question(fields) for fields in facts.countries()]
    size = len(probe.tokenizer.encode("The capital of France is"))
    return [
        (prompt, answer)
        for prompt, answer in rows
        if len(probe.tokenizer.encode(prompt)) == size and len(probe.tokenizer.encode(answer)) == 1
    ]


def steering(probe: Probe) -> None:
    """How often ``scale * (B - A)``, added at the last position of A's prompt, makes the model say B's answer."""
    rows = short_capitals(probe)
    pairs = random.Random(0).sample([(a, b) for a in range(len(rows)) for b in range(len(rows)) if a != b], 300)
    a, b = (torch.tensor(side) for side in zip(*pairs, strict=True))
    ids = probe.ids(*(prompt for prompt, _ in rows))
    answer = torch.tensor([probe.token(answer) for _, answer in rows])
    residual = probe.residuals(ids)
    print(
        f"{len(pairs)} pairs of countries: answer flipped to the other capital (mean probability), by layer and scale"
    )
    print("  layer", *(f"{scale:>11}" for scale in SCALES))
    for layer in range(len(probe.layers)):
        cells = []
        for scale in SCALES:
            p = probe.steered(ids[a], layer, scale * (residual[layer, b] - residual[layer, a]))
            flipped = (p.argmax(-1) == answer[b]).float().mean()
            cells.append(f"{flipped:>5.2f} ({p.gather(1, answer[b][:, None]).mean():.2f})")
        print(f"  {layer:>5}", *cells)
    examples(probe)


def examples(probe: Probe) -> None:
    """Single steering edits, before and after."""
    base, other = "The capital of France is", "The capital of Italy is"
    cases = (
        (base, other, base, " Paris", " Rome"),
        (base, other, "Q: What is the capital of France? A:", " Paris", " Rome"),
        (base, "The language of France is", base, " Paris", " French"),
        ("I hate this film. It was", "I love this film. It was", "I hate this film. It was", " terrible", " wonderful"),
    )
    for minus, plus, prompt, old, new in cases:
        ids = probe.ids(prompt)
        vectors = (probe.residuals(probe.ids(plus)) - probe.residuals(probe.ids(minus)))[:, 0]
        p = probe.steered(ids, 0, 0 * vectors[0])[0]
        words = (probe.token(old), probe.token(new))
        print(f"({plus!r} - {minus!r}) into {prompt!r}")
        print(f"  without: p({old!r}) {p[words[0]]:.4f}, p({new!r}) {p[words[1]]:.4f}")
        for layer, vector in enumerate(vectors):
            cells = []
            for scale in (1.0, 1.5, 2.0, 3.0):
                p = probe.steered(ids, layer, scale * vector)[0]
                top = probe.tokenizer.decode([int(p.argmax())])
                cells.append(f"x{scale:g} {p[words[0]]:.4f} {p[words[1]]:.4f}{top:<11}")
            print(f"  layer {layer}:", *cells)


def heads(probe: Probe) -> None:
    """What becomes of the likeliest token when one attention head, or a whole attention layer, is silenced."""
    config = probe.model.config
    count = config.num_attention_heads

    def without(ids: Tensor, layer: int, first: int, size: int) -> Tensor:
        part = slice(first * config.head_dim, (first + size) * config.head_dim)

        def silence(value: Tensor) -> Tensor:
            value = value.clone()
            value[..., part] = 0
            return value

        with hook(probe.layers[layer].self_attn.o_proj, silence, before=True):
            return probe.model(ids).logits[0, -1].softmax(-1)

    print("heads silenced at every position; the three that matter most, then whole layers by layer")
    for prompt in PROMPTS:
        ids = probe.ids(prompt)
        p = probe.model(ids).logits[0, -1].softmax(-1)
        best = int(p.argmax())
        print(f"{prompt!r}: p({probe.tokenizer.decode([best])!r}) {p[best]:.4f}")
        results = [
            (float(edited[best]), layer, head, probe.tokenizer.decode([int(edited.argmax())]))
            for layer in range(len(probe.layers))
            for head in range(count)
            for edited in [without(ids, layer, head, 1)]
        ]
        strongest = [f"layer {layer} head {head} {value:.4f}{top}" for value, layer, head, top in sorted(results)[:3]]
        print("   one head:", "; ".join(strongest))
        print("   all heads:", *(f"{without(ids, layer, 0, count)[best]:.2f}" for layer in range(len(probe.layers))))


def vllm_continuation(directory: str, dtype: str) -> None:
    """The continuation of each prompt in a real vLLM engine."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_PLUGINS", "")  # the engine as it is, without plugins of this workspace
    from vllm import LLM, SamplingParams

    engine = LLM(directory, dtype=dtype, enforce_eager=True, max_model_len=256, max_num_seqs=8)
    for out in engine.generate(list(PROMPTS), SamplingParams(temperature=0.0, max_tokens=16)):
        print(f"vLLM {dtype} {out.prompt!r} -> {out.outputs[0].text!r}")


@torch.no_grad()
def main() -> None:
    """Read the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--vllm", action="store_true", help="run the continuation in vLLM")
    parser.add_argument("--dtype", default="float32", help="the number type vLLM computes in")
    args = parser.parse_args()
    if args.vllm:
        vllm_continuation(args.directory, args.dtype)
        return
    torch.set_num_threads(2)
    probe = Probe(args.directory)
    for part in (accuracy, continuation, lens, steering, heads):
        print(f"\n== {part.__name__}")
        part(probe)


if __name__ == "__main__":
    main()
