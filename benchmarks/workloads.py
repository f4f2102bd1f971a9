"""What the engines are asked to do, plain and traced."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

Workload = Callable[[int], object]


class Workloads:
    """Traced workloads on one model, with the plain generation of the same tokens beside them.

    Every prompt is random token ids, so that no cache helps.
    """

    def __init__(self, model: Any, *, prompt_tokens: int, new_tokens: int, vocabulary: int) -> None:
        """Prepare the workloads.

        Args:
            model: A dispatched `VLLM`.
            prompt_tokens: Length of each prompt.
            new_tokens: Tokens generated for each.
            vocabulary: Ids are drawn below it.
        """
        self.model = model
        self.prompt_tokens = prompt_tokens
        self.new_tokens = new_tokens
        self.vocabulary = vocabulary
        self.keywords: dict[str, Any] = {"temperature": 0.0, "max_tokens": new_tokens, "ignore_eos": True}

    def prompt(self, seed: int, length: int | None = None) -> list[int]:
        """Return random token ids."""
        generator = random.Random(seed)
        return [generator.randrange(3, self.vocabulary) for _ in range(length or self.prompt_tokens)]

    def plain(self, llm: Any, concurrency: int = 1) -> Workload:
        """Generate on a vLLM engine without a block."""
        from vllm import SamplingParams

        params = SamplingParams(**self.keywords)

        def run(number: int) -> object:
            prompts = [{"prompt_token_ids": self.prompt(number * 1000 + index)} for index in range(concurrency)]
            return llm.generate(prompts, params, use_tqdm=False)

        return run

    def untraced(self, number: int) -> object:
        """Generate on our engine without a block."""
        return self.model.generate(self.prompt(number * 1000), **self.keywords)

    def empty(self, number: int) -> None:
        """Run a block that asks for nothing but the result."""
        with self.model.trace(self.prompt(number * 1000), **self.keywords) as tracer:
            result = tracer.result.save()
        assert result is not None

    def read(self, num_layers: int) -> Workload:
        """Read the outputs of so many layers at every step."""
        layers = [self.model.model.layers[index] for index in range(num_layers)]
        steps = self.new_tokens

        def run(number: int) -> object:
            with self.model.trace(self.prompt(number * 1000), **self.keywords) as tracer:
                kept = list().save()
                for _ in tracer.iter[:steps]:
                    for layer in layers:
                        kept.append(layer.output[0])
            assert len(kept) == steps * num_layers
            return kept

        return run

    def look_at(self, num_layers: int) -> Workload:
        """Read the outputs of so many layers at every step, and keep none."""
        layers = [self.model.model.layers[index] for index in range(num_layers)]
        steps = self.new_tokens

        def run(number: int) -> None:
            with self.model.trace(self.prompt(number * 1000), **self.keywords) as tracer:
                for _ in tracer.iter[:steps]:
                    for layer in layers:
                        layer.output[0]

        return run

    def read_middle(self, number: int) -> object:
        """Read one layer in the middle at every step."""
        layer = self.model.model.layers[len(self.model.model.layers) // 2]
        steps = self.new_tokens
        with self.model.trace(self.prompt(number * 1000), **self.keywords) as tracer:
            kept = list().save()
            for _ in tracer.iter[:steps]:
                kept.append(layer.output[0])
        assert len(kept) == steps
        return kept

    def steer(self, number: int) -> None:
        """Add a vector at one layer at every step."""
        layer = self.model.model.layers[len(self.model.model.layers) // 3]
        steps = self.new_tokens
        weight = self.model.model.norm.weight
        vector = torch.full((weight.shape[0],), 0.01, dtype=weight.dtype)
        with self.model.trace(self.prompt(number * 1000), **self.keywords) as tracer:
            local = None
            for _ in tracer.iter[:steps]:
                states = layer.output[0]
                if local is None:
                    local = vector.to(states.device)
                states[:] += local
            result = tracer.result.save()
        assert result is not None

    def override(self, number: int) -> object:
        """Override the sampled id at every step."""
        steps = self.new_tokens
        with self.model.trace(self.prompt(number * 1000), **self.keywords) as tracer:
            for _ in tracer.iter[:steps]:
                self.model.samples = torch.full_like(self.model.samples, 5)
            result = tracer.result.save()
        assert set(result.outputs[0].token_ids) == {5}
        return result

    def read_middle_concurrently(self, concurrency: int) -> Workload:
        """Read one layer in the middle at every step of several requests at once."""
        layer = self.model.model.layers[len(self.model.model.layers) // 2]
        steps = self.new_tokens

        def run(number: int) -> object:
            with self.model.trace(**self.keywords) as tracer:
                for index in range(concurrency):
                    with tracer.invoke(self.prompt(number * 1000 + index)):
                        kept = list().save()
                        for _ in tracer.iter[:steps]:
                            kept.append(layer.output[0])
            return kept

        return run
