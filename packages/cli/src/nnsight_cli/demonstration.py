"""The demo's experiments, run on a model and brought into plain numbers and words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnsight_cli import experiments

PROMPT = "The capital of France is"
MAX_TOKENS = 16
TOP = 5

# Measured on the bundled checkpoint: from the first layers on the mood is in the last token's residual stream, and
# between once and twice the difference turns the answer of every such sentence.
STEERED_PROMPT = "I hate this book. It was"
AWAY_FROM = "I hate this film. It was"
TOWARDS = "I love this film. It was"
STEERED_LAYER = 2
SCALE = 1.5


@dataclass(frozen=True)
class Guess:
    """One token that the model may say next.

    Attributes:
        token: Its text.
        token_id: Its id.
        probability: How likely it is.
    """

    token: str
    token_id: int
    probability: float


@dataclass(frozen=True)
class Reading:
    """A prompt, how the model goes on, and what each layer would have said next.

    Attributes:
        prompt: What the model was given.
        text: What it went on to say, greedily.
        layers: The likeliest tokens after each layer, the likeliest first.
    """

    prompt: str
    text: str
    layers: tuple[tuple[Guess, ...], ...]


@dataclass(frozen=True)
class Steering:
    """What a vector, added to the model while it ran, did to its answer.

    Attributes:
        prompt: What the model was given.
        away_from: The prompt that the vector was measured from.
        towards: The prompt that it was measured to.
        layer: The layer after which it was added.
        scale: What it was multiplied with.
        before: Likeliest next tokens without it.
        after: Likelihood of the same tokens with it, and of those that it made likely.
        text_before: The text without it.
        text_after: The text with it.
    """

    prompt: str
    away_from: str
    towards: str
    layer: int
    scale: float
    before: tuple[Guess, ...]
    after: tuple[Guess, ...]
    text_before: str
    text_after: str


@dataclass(frozen=True)
class Demonstration:
    """Everything that the demo shows.

    Attributes:
        reading: The logit lens.
        steering: The steering vector.
        receipts: What was served and changed in the trace of each experiment, by its name.
    """

    reading: Reading
    steering: Steering
    receipts: dict[str, dict[str, Any]]


def read(model: Any) -> tuple[Reading, dict[str, Any]]:
    """Run the logit lens, and return it with its receipt."""
    lens, output, receipt = experiments.read_every_layer(model, PROMPT, TOP, MAX_TOKENS)
    layers = tuple(_guesses(model, values.tolist(), indices.tolist()) for values, indices in lens)
    return Reading(PROMPT, output.outputs[0].text, layers), receipt.as_dict()


def steer(model: Any) -> tuple[Steering, dict[str, Any]]:
    """Measure a vector, run a prompt without and with it, and return what it did with its receipt."""
    direction = experiments.difference(model, AWAY_FROM, TOWARDS, STEERED_LAYER)
    runs = [
        experiments.steer(model, STEERED_PROMPT, STEERED_LAYER, scale * direction, MAX_TOKENS) for scale in (0.0, SCALE)
    ]
    (before, plain, _), (after, steered, receipt) = runs
    # The same tokens on both sides: the likeliest of each, the likeliest without the vector first.
    shown = list(dict.fromkeys([*before.topk(3).indices.tolist(), *after.topk(3).indices.tolist()]))
    steering = Steering(
        prompt=STEERED_PROMPT,
        away_from=AWAY_FROM,
        towards=TOWARDS,
        layer=STEERED_LAYER,
        scale=SCALE,
        before=_guesses(model, before[shown].tolist(), shown),
        after=_guesses(model, after[shown].tolist(), shown),
        text_before=plain.outputs[0].text,
        text_after=steered.outputs[0].text,
    )
    return steering, receipt.as_dict()


def _guesses(model: Any, probabilities: list[float], token_ids: list[int]) -> tuple[Guess, ...]:
    decode = model.tokenizer.decode
    return tuple(
        Guess(decode([token_id]), token_id, probability)
        for probability, token_id in zip(probabilities, token_ids, strict=True)
    )
