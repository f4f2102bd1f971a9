"""What ends a request early: its block stops it, fails, runs or holds too much; its neighbours run on."""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch

from nnsight.errors import (
    BudgetExceededError,
    MismatchedValueError,
    RequestFailedError,
    UntransferableValueError,
)
from nnsight_vllm.compat.runners import STOP_REASON
from own_errors import Enough

if TYPE_CHECKING:
    from hf_reference import HFReference

pytestmark = pytest.mark.slow

PROMPT, NEIGHBOUR = "w1 w2 w3 w4 w5", "w9 w8 w7"
Greedy = Callable[[int], dict[str, Any]]
SEVERAL_RANKS = True


@pytest.fixture(scope="module")
def tokens(engine: Any, reference: HFReference) -> list[int]:
    return reference.generate(engine.tokenizer.encode(PROMPT), 12).tokens


@pytest.fixture(scope="module")
def neighbour_tokens(engine: Any, reference: HFReference) -> list[int]:
    return reference.generate(engine.tokenizer.encode(NEIGHBOUR), 12).tokens


def ids_of(result: Any) -> list[int]:
    return list(result.outputs[0].token_ids)


def left_in_the_worker(engine: Any) -> int:
    return int(engine.vllm_entrypoint.collective_rpc("nnsight_discard", args=(b"\x90",))[0])


def assert_holds_only_what_was_sampled(engine: Any, result: Any, sampled: list[int]) -> None:
    output = result.outputs[0]
    assert ids_of(result) == sampled
    plain = engine.generate(PROMPT, temperature=0.0, max_tokens=len(sampled), ignore_eos=True).outputs[0]
    assert (output.text, ids_of(result)) == (plain.text, list(plain.token_ids))
    assert (output.finish_reason, output.stop_reason) == ("length", STOP_REASON)


@pytest.mark.parametrize("step", [0, 1, 5])
@pytest.mark.parametrize("place", ["layer", "samples"])
def test_stop_ends_the_request_in_the_step_it_is_called_in(
    engine: Any, greedy: Greedy, tokens: list[int], step: int, place: str
) -> None:
    with engine.trace(PROMPT, min_tokens=30, **greedy(60)) as tracer:
        kept = list().save()
        for now in tracer.iter[:60]:
            kept.append(engine.model.layers[0].output[0])
            if place == "samples":
                token = engine.samples.save()
            if now == step:
                tracer.stop()
    assert_holds_only_what_was_sampled(engine, tracer.result, tokens[: step + 1])
    assert [tuple(states.shape) for states in kept] == [(5, 128), *[(1, 128)] * step]
    if place == "samples":
        assert token.tolist() == tokens[step : step + 1]
    assert left_in_the_worker(engine) == 0


def test_a_stop_leaves_neighbours_in_the_batch_alone(
    engine: Any, greedy: Greedy, tokens: list[int], neighbour_tokens: list[int]
) -> None:
    with engine.trace(min_tokens=12, **greedy(12)) as tracer:
        with tracer.invoke(NEIGHBOUR):
            before = tracer.result.save()
        with tracer.invoke(PROMPT):
            for now in tracer.iter[:12]:
                seen = engine.samples.save()
                if now == 3:
                    tracer.stop()
        with tracer.invoke(NEIGHBOUR):
            counted = 0
            for _ in tracer.iter[:12]:
                engine.model.layers[1].output
                counted += 1
            counted.save()
            after = tracer.result.save()
        with tracer.invoke(PROMPT):
            engine.logits
            tracer.stop()
    assert ids_of(before) == ids_of(after) == neighbour_tokens
    assert counted == 12
    assert seen.tolist() == tokens[3:4]
    assert [ids_of(result) for result in tracer.result] == [neighbour_tokens, tokens[:4], neighbour_tokens, tokens[:1]]


def test_a_failing_block_ends_its_request_whatever_min_tokens_says(engine: Any, greedy: Greedy) -> None:
    with pytest.raises(KeyError, match="mine") as raised:
        with engine.trace(PROMPT, min_tokens=50, **greedy(100)) as tracer:
            for now in tracer.iter[:100]:
                kept = engine.samples.save()  # noqa: F841 - comes home on the error
                if now == 2:
                    raise KeyError("mine")
    assert raised.value.saves["kept"].shape == (1,)  # type: ignore[attr-defined]
    assert len(ids_of(tracer.result)) == 3
    assert left_in_the_worker(engine) == 0


# Errors ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def neighbours_run_on(engine: Any, greedy: Greedy, expected: list[int]) -> Iterator[None]:
    yield
    assert ids_of(engine.generate(NEIGHBOUR, **greedy(12))) == expected
    assert left_in_the_worker(engine) == 0


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (SystemExit(3), RequestFailedError, "SystemExit: 3"),
        (KeyboardInterrupt("now"), RequestFailedError, "KeyboardInterrupt: now"),
        (GeneratorExit("over"), RequestFailedError, "GeneratorExit: over"),
        (BaseException("bare"), BaseException, "bare"),
        (BaseExceptionGroup("several", [KeyError("one")]), BaseException, "several"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_exception_ends_one_request_alone(
    engine: Any,
    greedy: Greedy,
    neighbour_tokens: list[int],
    error: BaseException,
    kind: type[BaseException],
    words: str,
) -> None:
    name, arguments = type(error).__name__, error.args
    with neighbours_run_on(engine, greedy, neighbour_tokens):
        with pytest.raises(kind, match=words):
            with engine.trace(**greedy(12)) as tracer:
                with tracer.invoke(PROMPT):
                    import builtins

                    engine.model.layers[1].output
                    raise getattr(builtins, name)(*arguments)
                with tracer.invoke(NEIGHBOUR):
                    beside = tracer.result.save()
        assert ids_of(beside) == neighbour_tokens


def test_an_exception_of_the_callers_own_that_is_no_exception_comes_home_as_itself(
    engine: Any, greedy: Greedy, neighbour_tokens: list[int]
) -> None:
    with neighbours_run_on(engine, greedy, neighbour_tokens):
        with pytest.raises(Enough, match="of this") as raised, engine.trace(PROMPT, **greedy(12)):
            kept = engine.model.layers[1].output[0].save()  # noqa: F841 - comes home on the error
            raise Enough("of this")
    assert raised.value.saves["kept"].shape == (5, 128)  # type: ignore[attr-defined]
    assert traceback.extract_tb(raised.value.__traceback__)[-1].line == 'raise Enough("of this")'


def test_a_loop_without_an_end_ends_its_request_alone(engine: Any, greedy: Greedy, neighbour_tokens: list[int]) -> None:
    def spin() -> None:
        for _ in itertools.count():
            pass

    with neighbours_run_on(engine, greedy, neighbour_tokens):
        with pytest.raises(BudgetExceededError, match="step_budget=") as raised, engine.trace(**greedy(12)) as tracer:
            with tracer.invoke(PROMPT):
                engine.model.layers[1].output
                spin()
            with tracer.invoke(NEIGHBOUR):
                beside = tracer.result.save()
        assert ids_of(beside) == neighbour_tokens
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "spin"


def test_a_block_that_holds_too_much_ends_its_request_alone(
    engine: Any, greedy: Greedy, neighbour_tokens: list[int]
) -> None:
    with neighbours_run_on(engine, greedy, neighbour_tokens):
        with pytest.raises(BudgetExceededError, match="byte_budget=") as raised, engine.trace(**greedy(12)) as tracer:
            with tracer.invoke(PROMPT):
                kept = list().save()
                for _ in tracer.iter[:12]:
                    for layer in engine.model.layers:
                        kept.append(layer.output[0].new_zeros(4_000_000))
            with tracer.invoke(NEIGHBOUR):
                beside = tracer.result.save()
        assert ids_of(beside) == neighbour_tokens
    assert "byte budget of 64.0 MiB" in str(raised.value)


def test_an_unsendable_save_and_a_wrong_shape_end_their_requests_alone(
    engine: Any, greedy: Greedy, neighbour_tokens: list[int]
) -> None:
    with neighbours_run_on(engine, greedy, neighbour_tokens):
        with pytest.raises(UntransferableValueError, match="numbers") as raised, engine.trace(**greedy(12)) as tracer:
            with tracer.invoke(PROMPT):
                kept = engine.logits.save()
                numbers = (number for number in range(3)).save()  # noqa: F841 - cannot travel
            with tracer.invoke(PROMPT):
                other = engine.model.layers[0].output[0].save()
                engine.model.layers[1].mlp.output = torch.zeros(2, 3)
            with tracer.invoke(NEIGHBOUR):
                beside = tracer.result.save()
        assert ids_of(beside) == neighbour_tokens
    assert kept.shape == (1, 512)
    assert other.shape == (5, 128)
    assert any("invoke 1 failed too: MismatchedValueError" in note for note in raised.value.__notes__)


# Tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["number", "tensor", "in place"])
@pytest.mark.parametrize("token", [-1, 512, 2**40])
def test_an_id_that_the_vocabulary_has_not_is_refused_by_name(
    engine: Any, greedy: Greedy, neighbour_tokens: list[int], form: str, token: int
) -> None:
    with neighbours_run_on(engine, greedy, neighbour_tokens):
        with pytest.raises(MismatchedValueError, match=r"samples.*token -?\d+.*ids 0 to 511"):
            with engine.trace(**greedy(12)) as tracer:
                with tracer.invoke(PROMPT):
                    for now in tracer.iter[:12]:
                        if now == 1 and form == "number":
                            engine.samples = token
                        elif now == 1 and form == "tensor":
                            engine.samples = torch.tensor([token])
                        elif now == 1:
                            engine.samples[0] = min(token, 2**31 - 1)
                with tracer.invoke(NEIGHBOUR):
                    beside = tracer.result.save()
        assert ids_of(beside) == neighbour_tokens


def test_a_token_forced_against_a_grammar_is_that_requests_error(
    engine: Any, greedy: Greedy, neighbour_tokens: list[int]
) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    grammar = {"structured_outputs": StructuredOutputsParams(choice=["w7w8", "w9w10"])}
    w7, w8, w9 = (engine.tokenizer.encode(word)[0] for word in ("w7", "w8", "w9"))
    with neighbours_run_on(engine, greedy, neighbour_tokens):
        with pytest.raises(MismatchedValueError, match=f"token {w8}, which the grammar") as raised:
            with engine.trace(**greedy(12)) as tracer:
                with tracer.invoke(PROMPT, **grammar):
                    engine.samples = w8
                with tracer.invoke(PROMPT, **grammar):
                    engine.samples = w9
                    allowed = tracer.result.save()
                with tracer.invoke(PROMPT):
                    engine.samples = w8
                    free = tracer.result.save()
                with tracer.invoke(NEIGHBOUR):
                    beside = tracer.result.save()
        assert ids_of(beside) == neighbour_tokens
    assert traceback.extract_tb(raised.value.__traceback__)[-1].line == "engine.samples = w8"
    assert ids_of(allowed)[0] == w9
    assert ids_of(free)[0] == w8
    assert len(ids_of(free)) == 12
    assert w7 not in ids_of(allowed)[:1]
