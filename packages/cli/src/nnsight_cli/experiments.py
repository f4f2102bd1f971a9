"""What the demo does with a model. The demo prints the source of these functions, so they are written to be read."""

from __future__ import annotations

from typing import Any

import nnsight


def read_every_layer(model: Any, prompt: str, top: int, max_tokens: int) -> Any:
    """Ask every layer which token it would say next, in one trace of the prompt."""
    with model.trace(prompt, temperature=0.0, max_tokens=max_tokens) as tracer:
        lens = nnsight.save([])
        for layer in model.model.layers:
            residual = sum(layer.output)[-1:]  # vLLM hands the residual stream on in two parts
            logits = model.lm_head(model.model.norm(residual))
            lens.append(logits.softmax(-1)[0].topk(top))
        output = tracer.result.save()
    return lens, output, tracer.receipt


def difference(model: Any, prompt: str, other: str, layer: int) -> Any:
    """Subtract the residual stream of one prompt from another's, at the last token, in one trace of both."""
    block = model.model.layers[layer]
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        with tracer.invoke(prompt):
            here = sum(block.output)[-1].save()
        with tracer.invoke(other):
            there = sum(block.output)[-1].save()
    return there - here


def steer(model: Any, prompt: str, layer: int, push: Any, max_tokens: int) -> Any:
    """Add a vector to the last token of the prompt, after one layer, and let the model go on from there."""
    with model.trace(prompt, temperature=0.0, max_tokens=max_tokens) as tracer:
        model.model.layers[layer].output[0][-1] += push
        probabilities = model.logits[0].softmax(-1).save()
        output = tracer.result.save()
    return probabilities, output, tracer.receipt
