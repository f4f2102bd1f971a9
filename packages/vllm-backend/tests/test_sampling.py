"""Everything that vLLM's sampler does works on traced requests as on others, and sees what blocks edit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from engine_runners import TOLERANCE
from nnsight.errors import InvalidRequestError
from nnsight_vllm.compat.versions import runs_on_cpu

pytestmark = pytest.mark.slow

PROMPT = "w1 w2 w3 w4 w5"
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 11, "ignore_eos": True}

KEYWORDS: dict[str, dict[str, Any]] = {
    "logprobs": {**GREEDY, "logprobs": 5},
    "all logprobs of a seeded sample": {**SEEDED, "logprobs": 3},
    "logprobs of the prompt": {**GREEDY, "prompt_logprobs": 2},
    "penalties": {**GREEDY, "presence_penalty": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.4},
    "seed with top_p, top_k and min_p": {**SEEDED, "top_p": 0.9, "top_k": 50, "min_p": 0.001},
    "logit_bias": {**GREEDY, "logit_bias": {100: 60.0}, "logprobs": 1},
    "allowed_token_ids": {**GREEDY, "allowed_token_ids": [50, 51, 52]},
    "bad_words": {**SEEDED, "bad_words": ["w100", "w200"]},
    "min_tokens with stop_token_ids": {**SEEDED, "min_tokens": 3, "stop_token_ids": list(range(0, 500, 5))},
    "stop string": {
        **SEEDED,
        "stop": [f"w{number}" for number in range(0, 509, 4)],
        "include_stop_str_in_output": True,
    },
    "several sequences": {**SEEDED, "n": 3, "logprobs": 2},
    "no detokenization": {**GREEDY, "detokenize": False},
}


# Another batch may round otherwise, on a GPU by more than the distance of unlikely tokens.
DIGITS, RANKED = (3, 512) if runs_on_cpu() else (1, 4)


def said(output: Any) -> list[Any]:
    """Return what a finished output says, with numbers that another batch may round otherwise rounded."""

    def plain(logprobs: Any) -> Any:
        if logprobs is None:
            return None
        return [
            each and {token: (min(found.rank, RANKED), round(found.logprob, DIGITS)) for token, found in each.items()}
            for each in logprobs
        ]

    completions = [
        [each.index, each.text, list(each.token_ids), plain(each.logprobs), each.finish_reason, each.stop_reason]
        for each in output.outputs
    ]
    return [completions, plain(output.prompt_logprobs)]


@pytest.mark.parametrize("keywords", KEYWORDS.values(), ids=KEYWORDS)
def test_a_traced_request_samples_as_an_untraced_one(engine: Any, keywords: dict[str, Any]) -> None:
    plain = engine.generate(PROMPT, max_tokens=6, **keywords)
    with engine.trace(PROMPT, max_tokens=6, **keywords) as tracer:
        state = sum(engine.model.layers[1].output).save()
        ids = list().save()
        for _ in tracer.all():
            ids.append(engine.samples.item())
    assert said(tracer.result) == said(plain)
    for index, completion in enumerate(tracer.result.outputs):
        tokens = list(completion.token_ids)
        assert completion.saves["ids"][: len(tokens)] == tokens
        assert (state if len(tracer.result.outputs) == 1 else state[index]).shape == (5, 128)


# No token of the tiny model is a blank.
GRAMMARS: dict[str, dict[str, Any]] = {
    "choice": {"choice": ["w7w8w9", "w10w11"]},
    "regex": {"regex": r"(w1|w2)(w3){2,4}"},
    "grammar": {"grammar": 'root ::= "w4" "w5"'},
}


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS)
def test_a_grammar_holds_for_a_traced_request(engine: Any, grammar: dict[str, Any]) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    keywords = {"temperature": 0.0, "max_tokens": 8, "structured_outputs": StructuredOutputsParams(**grammar)}
    plain = engine.generate(PROMPT, **keywords)
    assert plain.outputs[0].finish_reason in ("stop", "length")
    with engine.trace(PROMPT, **keywords) as tracer:
        logits = engine.logits.save()
    assert said(tracer.result) == said(plain)
    # A block sees the logits as the model computed them, before the grammar masks any.
    assert torch.isfinite(logits).all()


def test_a_grammar_masks_what_a_block_made_of_the_logits(engine: Any) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    grammar = StructuredOutputsParams(choice=["w7", "w9"])
    for word in (7, 9):
        token = word + 3
        with engine.trace(PROMPT, temperature=0.0, max_tokens=4, structured_outputs=grammar) as tracer:
            engine.logits[0, 300] += 1e5
            engine.logits[0, token] += 1e4
        assert re.match(rf"w{word}\b", tracer.result.outputs[0].text.strip())


def test_logprobs_are_those_of_the_logits_that_a_block_edited(engine: Any) -> None:
    with engine.trace(PROMPT, max_tokens=1, logprobs=2, **GREEDY) as tracer:
        engine.logits[0, 77] = 1e3
        edited = engine.logits.save()
    completion = tracer.result.outputs[0]
    assert list(completion.token_ids) == [77]
    expected = torch.log_softmax(edited[0].float(), -1)[77]
    assert completion.logprobs[0][77].logprob == pytest.approx(float(expected), abs=TOLERANCE)
    assert completion.logprobs[0][77].rank == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_that_a_block_forces_has_its_own_logprob(engine: Any, temperature: float) -> None:
    with engine.trace(PROMPT, max_tokens=2, logprobs=2, temperature=temperature, ignore_eos=True) as tracer:
        logits = list().save()
        for _ in tracer.iter[:2]:
            logits.append(engine.logits)
            engine.samples = 77
    completion = tracer.result.outputs[0]
    assert list(completion.token_ids) == [77, 77]
    total = 0.0
    for each, step in zip(completion.logprobs, logits, strict=True):
        expected = torch.log_softmax(step[0].float(), -1)
        assert each[77].logprob == pytest.approx(float(expected[77]), abs=TOLERANCE)
        assert each[77].rank == int((expected >= expected[77]).sum())
        total += float(expected[77])
        best = expected.topk(2)
        assert {token: round(found.logprob, 3) for token, found in each.items() if token != 77} == {
            int(token): round(float(value), 3) for value, token in zip(*best, strict=True) if int(token) != 77
        }
    assert completion.cumulative_logprob == pytest.approx(total, abs=1e-3)


def test_a_neighbour_of_a_forced_token_keeps_its_logprobs(engine: Any) -> None:
    plain = engine.generate(PROMPT, max_tokens=2, logprobs=2, **GREEDY)
    with engine.trace(max_tokens=2, logprobs=2, **GREEDY) as tracer:
        with tracer.invoke("w9 w8"):
            for _ in tracer.iter[:2]:
                engine.samples = 77
        with tracer.invoke(PROMPT):
            engine.logits
    assert said(tracer.result[1]) == said(plain)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("logprob", "logprobs"), ("stop_strings", "stop"), ("structured_output", "structured_outputs"), ("lora", None)],
)
def test_an_unknown_keyword_is_refused_with_a_known_one(engine: Any, given: str, nearest: str | None) -> None:
    with pytest.raises(TypeError, match=f"did you mean {nearest}" if nearest else "unknown keyword"):
        engine.trace(PROMPT, **{given: 1})


def test_an_invoke_wins_over_its_trace_also_with_a_default_of_vllms(engine: Any) -> None:
    with engine.trace(max_tokens=3, ignore_eos=True, temperature=0.5, logprobs=2, seed=1, n=2) as tracer:
        with tracer.invoke(PROMPT, n=1, logprobs=None, temperature=1.0, max_tokens=16):
            ids = engine.samples.item().save()
        with tracer.invoke(PROMPT):
            pass
    own, other = tracer.result
    assert (len(own.outputs), own.outputs[0].logprobs, len(own.outputs[0].token_ids)) == (1, None, 16)
    assert ids == own.outputs[0].token_ids[0]
    assert (len(other.outputs), len(other.outputs[0].logprobs), len(other.outputs[1].token_ids)) == (2, 3, 3)


def test_values_that_vllm_refuses_are_refused_before_anything_runs(engine: Any) -> None:
    with pytest.raises(InvalidRequestError, match="n must"):
        engine.trace(PROMPT, n=0)
    with pytest.raises(InvalidRequestError, match="greedy"):
        engine.trace(PROMPT, n=2, temperature=0.0)


def test_invokes_with_the_same_keywords_share_nothing_that_one_of_them_changes(engine: Any) -> None:
    keywords = {"temperature": 0.9, "max_tokens": 4, "ignore_eos": True}
    seeds = [1, 1, 2, 1]
    with engine.trace(**keywords) as tracer:
        results = list().save()
        for seed in seeds:
            with tracer.invoke(PROMPT, seed=seed):
                results.append(tracer.result)
    said_by = [list(result.outputs[0].token_ids) for result in results]
    first, second = (list(engine.generate(PROMPT, seed=seed, **keywords).outputs[0].token_ids) for seed in (1, 2))
    assert said_by == [first, first, second, first]
    assert first != second


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": True},
        {"max_tokens": 3.0},
        {"min_tokens": 1.5},
        {"ignore_eos": 1},
        {"detokenize": "no"},
        {"priority": "high"},
        {"lora_request": "french"},
        {"extra_args": {"mine": object()}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_value_that_the_engine_could_not_read_is_refused_in_the_callers_process(engine: Any, wrong: Any) -> None:
    # vLLM logs it, drops the request, and lets its caller wait forever.
    engine.generate(PROMPT, max_tokens=1)
    ((name, value),) = wrong.items()
    shown = "" if name == "extra_args" else re.escape(f"{name}={value!r}")
    with pytest.raises(InvalidRequestError, match=f"vLLM refuses .*{shown}"):
        engine.generate(PROMPT, **wrong)
    with pytest.raises(InvalidRequestError, match=f"vLLM refuses .*{shown}"), engine.trace(PROMPT, **wrong):
        engine.logits.save()
    with engine.trace(PROMPT, max_tokens=1):
        logits = engine.logits.save()
    assert logits.shape[0] == 1
