"""`nnsight demo`, run once as a user runs it; its numbers are checked against Transformers."""

from __future__ import annotations

import inspect
import io
import json
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console
from transformers import AutoTokenizer

from hf_reference import HFReference
from nnsight_cli import demo_model_path, demo_report, experiments
from nnsight_cli.demonstration import Demonstration, Guess, Reading, Steering

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reference() -> HFReference:
    return HFReference(demo_model_path())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(demo_model_path())


@pytest.fixture(scope="module")
def results(demo: Any) -> Demonstration:
    """The results as the demo had them before it wrote them as JSON."""
    found = dict(demo.results)
    found.pop("image")
    reading, steering = dict(found.pop("reading")), dict(found.pop("steering"))
    reading["layers"] = tuple(tuple(Guess(**guess) for guess in row) for row in reading["layers"])
    for side in ("before", "after"):
        steering[side] = tuple(Guess(**guess) for guess in steering[side])
    return Demonstration(Reading(**reading), Steering(**steering), **found)


def test_it_succeeds_and_its_output_is_json_alone(demo: Any) -> None:
    assert demo.process.returncode == 0, demo.process.stderr
    assert set(json.loads(demo.process.stdout)) == {"reading", "steering", "receipts", "image"}


def test_the_user_sees_how_far_it_is_and_nothing_of_what_vllm_prints(demo: Any) -> None:
    lines = demo.process.stderr.splitlines()
    assert all(line.startswith("✓ ") for line in lines), demo.process.stderr
    assert any("engine started" in line for line in lines)


def test_the_model_knows_the_capital_and_goes_on(results: Demonstration) -> None:
    assert results.reading.text.startswith(" Paris.")
    assert len(results.reading.text.split()) > 5


def test_every_layer_is_read_with_its_likeliest_tokens(results: Demonstration) -> None:
    layers = results.reading.layers
    assert [len(row) for row in layers] == [5] * 8
    for row in layers:
        probabilities = [guess.probability for guess in row]
        assert probabilities == sorted(probabilities, reverse=True)
        assert 0 < sum(probabilities) <= 1.0001
    assert layers[-1][0].token == " Paris"
    assert layers[-1][0].probability > 0.9 > layers[0][0].probability


def test_the_lens_is_what_transformers_computes(results: Demonstration, reference: HFReference, tokenizer: Any) -> None:
    streams = reference.generate(tokenizer.encode(results.reading.prompt), steps=1).streams[0]
    for row, stream in zip(results.reading.layers, streams, strict=True):
        probabilities = _unembed(reference, stream[-1])
        for guess in row:
            assert guess.probability == pytest.approx(float(probabilities[guess.token_id]), abs=1e-4)
            assert guess.token == tokenizer.decode([guess.token_id])
        assert float(probabilities.max()) == pytest.approx(row[0].probability, abs=1e-4)


def test_the_text_is_what_transformers_generates(
    results: Demonstration, reference: HFReference, tokenizer: Any
) -> None:
    tokens = reference.generate(tokenizer.encode(results.reading.prompt), steps=16).tokens
    assert tokenizer.decode(tokens) == results.reading.text


def test_steering_turns_the_answer_and_what_follows(results: Demonstration) -> None:
    before, after = results.steering.before, results.steering.after
    assert max(before, key=_probability).token == " terrible"
    assert max(after, key=_probability).token == " wonderful"
    assert {guess.token: guess.probability for guess in before}[" wonderful"] < 0.01
    assert {guess.token: guess.probability for guess in after}[" terrible"] < 0.01
    assert "I feel sad" in results.steering.text_before
    assert "I feel happy" in results.steering.text_after


def test_the_steered_probabilities_are_what_transformers_computes(
    results: Demonstration, reference: HFReference, tokenizer: Any
) -> None:
    found = results.steering
    here, there = (
        reference.generate(tokenizer.encode(prompt), steps=1).streams[0][found.layer][-1]
        for prompt in (found.away_from, found.towards)
    )
    push = found.scale * (there - here)

    def add_to_last(states: torch.Tensor) -> torch.Tensor:
        return torch.cat([states[:-1], states[-1:] + push])

    ids = tokenizer.encode(found.prompt)
    for guesses, edits in ((found.before, {}), (found.after, {found.layer: add_to_last})):
        probabilities = reference.generate(ids, steps=1, edits=edits).logits[0].softmax(-1)
        for guess in guesses:
            assert guess.probability == pytest.approx(float(probabilities[guess.token_id]), abs=1e-4)


def test_the_vector_was_measured_on_other_prompts_than_the_one_it_changed(results: Demonstration) -> None:
    assert results.steering.prompt not in (results.steering.away_from, results.steering.towards)


def test_the_receipts_say_what_was_read_and_changed(results: Demonstration) -> None:
    reading, steering = results.receipts["reading"], results.receipts["steering"]
    layers = [f"model.layers.{index}.output" for index in range(8)]
    assert {place: reading["visits"][place] for place in layers} == dict.fromkeys(layers, 1)
    assert reading["edits"] == {}
    assert steering["edits"] == {f"model.layers.{results.steering.layer}.output": 1}
    assert reading["details"]["vllm"]


def test_the_picture_is_a_png_that_shows_the_layers(demo: Any) -> None:
    with Image.open(demo.image) as picture:
        assert picture.format == "PNG"
        assert picture.width > 1000
        assert picture.height > 800
        colours = picture.getcolors(maxcolors=2**24)
    assert colours is not None
    assert len(colours) > 100
    assert demo.results["image"] == str(demo.image)


def test_the_report_for_people_shows_results_receipts_and_the_source_that_ran(
    demo: Any, results: Demonstration
) -> None:
    console = Console(file=io.StringIO(), width=200)
    demo_report.show(console, results, demo.image)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "The capital of France is Paris." in text
    assert "·wonderful" in text
    assert str(demo.image) in text
    assert "16 steps" in text
    for function in (experiments.read_every_layer, experiments.difference, experiments.steer):
        for line in inspect.getsource(function).splitlines():
            assert line.strip() in text


def _unembed(reference: HFReference, stream: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        probabilities: torch.Tensor = reference.model.lm_head(reference.model.model.norm(stream)).softmax(-1)
    return probabilities


def _probability(guess: Guess) -> float:
    return guess.probability
