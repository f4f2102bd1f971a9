"""Edits run beside every request of an engine, and leave its prefix cache right for all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm import SamplingParams

from engine_runners import TOLERANCE
from nnsight.errors import InvalidRequestError, UnsupportedFeatureError, WireError

if TYPE_CHECKING:
    from hf_reference import HFReference

pytestmark = pytest.mark.slow

Greedy = Callable[[int], dict[str, Any]]
Make = Callable[[Any, torch.Tensor], None]

VECTOR = torch.linspace(-3.0, 3.0, 128)
PROMPT = "w1 w2 w3"
NO_KEYS = b"\x90"


@pytest.fixture(autouse=True)
def _no_edits(engine: Any) -> Iterator[None]:
    yield
    engine.clear_edits()
    assert engine.vllm_entrypoint.collective_rpc("nnsight_uninstall", args=(NO_KEYS,)) == [b"0"]
    assert engine.vllm_entrypoint.collective_rpc("nnsight_discard", args=(NO_KEYS,)) == [b"0"]


def long_prompt(start: int, length: int = 70) -> str:
    """Return a prompt that fills two blocks of the cache, and that no other test uses."""
    return " ".join(f"w{(start * 7 + index * 3) % 500}" for index in range(length))


def steer(engine: Any, vector: torch.Tensor, name: str | None = None) -> Any:
    """Install an edit that adds a vector to every row after the second layer."""
    with engine.edit(name=name) as (tracer, edit):
        for _ in tracer.all():
            engine.model.layers[1].output[0][:] += vector
    return edit


def tokens(output: Any) -> list[int]:
    return list(output.outputs[0].token_ids)


def plain_tokens(reference: HFReference, engine: Any, prompt: str, steps: int) -> list[int]:
    return list(reference.generate(engine.tokenizer.encode(prompt), steps).tokens)


def steered_tokens(reference: HFReference, engine: Any, prompt: str, steps: int, vector: torch.Tensor) -> list[int]:
    edits = {1: lambda states: states + vector}
    return list(reference.generate(engine.tokenizer.encode(prompt), steps, edits).tokens)


# Where edits run ------------------------------------------------------------------------------------------------------


def test_an_edit_runs_beside_traces_generation_and_requests_of_the_engine_itself(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    plain, steered = plain_tokens(reference, engine, PROMPT, 4), steered_tokens(reference, engine, PROMPT, 4, VECTOR)
    assert plain != steered
    edit = steer(engine, VECTOR)
    llm, params = engine.vllm_entrypoint, SamplingParams(**greedy(4))
    for expected in (steered, plain):
        assert tokens(engine.generate(PROMPT, **greedy(4))) == expected
        assert [tokens(output) for output in engine.generate([PROMPT, PROMPT], **greedy(4))] == [expected] * 2
        (output,) = llm.generate([PROMPT], [params], use_tqdm=False)
        assert tokens(output) == expected
        with engine.trace(PROMPT, **greedy(4)) as tracer:
            result = tracer.result.save()
        assert tokens(result) == expected
        edit.clear()
    assert params.extra_args is None


def test_what_an_edit_saves_is_on_the_outputs_that_the_model_generates(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    with engine.edit(name="probe") as (tracer, _):
        states, rows = list().save(), list().save()
        for _ in tracer.iter[:2]:
            states.append(sum(engine.model.layers[2].output))
            rows.append(states[-1].shape[0])
    with engine.edit(name="other"):
        logits = engine.logits.save()  # noqa: F841 - comes home
        rows = 0
        rows.save()
    prompts = [PROMPT, "w9 w8 w7 w6 w5"]
    for prompt, output in zip(prompts, engine.generate(prompts, **greedy(2)), strict=True):
        ids = engine.tokenizer.encode(prompt)
        expected = reference.generate(ids, 2)
        assert tokens(output) == expected.tokens
        # A name that both saved is found at each edit alone.
        assert sorted(output.saves) == ["logits", "states"]
        assert output.saves["logits"].shape == (1, 512)
        for step, found in enumerate(output.saves["states"]):
            assert (found - expected.streams[step][2]).abs().max() < TOLERANCE
        assert output.edits["probe"].saves["rows"] == [len(ids), 1]
        assert output.edits["other"].saves["rows"] == 0
        assert output.edits["probe"].receipt.steps == 2


def test_the_saves_of_a_trace_and_of_edits_are_kept_apart_on_its_output(engine: Any, greedy: Greedy) -> None:
    with engine.edit(name="probe") as (tracer, _):
        kept = (engine.model.layers[0].output[0] * 1).save()
        only = int(kept.shape[0]).save()  # noqa: F841 - comes home
        finished = tracer.result.save()  # noqa: F841 - comes home
    with engine.trace(PROMPT, **greedy(2)) as tracer:
        kept = engine.model.layers[3].output[0].save()
    assert tracer.saves.keys() == {"kept"}
    output = tracer.result
    assert output.saves.keys() == {"kept", "only", "finished"}
    assert output.saves["kept"] is kept
    assert output.saves["finished"] is output
    assert not torch.equal(output.edits["probe"].saves["kept"], kept)
    assert tracer.edits["probe"] is output.edits["probe"]


def test_a_receipt_counts_the_bytes_of_its_own_block(engine: Any, greedy: Greedy) -> None:
    with engine.edit(name="large"):
        states = engine.model.layers[0].output[0].repeat(10, 1).save()  # noqa: F841 - comes home
    with engine.edit(name="nothing"):
        pass
    with engine.trace(PROMPT, **greedy(1)) as tracer:
        row = engine.model.layers[1].output[0][-1].save()
    output = engine.generate(PROMPT, **greedy(1))
    sizes = {name: edit.receipt.bytes_home for name, edit in output.edits.items()}
    own, values = tracer.receipt.bytes_home, 10 * 3 * row.nbytes
    assert row.nbytes < own < row.nbytes + 100
    assert values < sizes["large"] < values + 100
    assert sizes["nothing"] == 0
    # Where in the message a value lies is written there too.
    assert abs(tracer.edits["large"].receipt.bytes_home - sizes["large"]) < 10


def test_large_values_that_an_edit_saves_come_home(engine: Any, greedy: Greedy) -> None:
    with engine.edit():
        states = engine.model.layers[0].output[0].repeat(4000, 1).save()  # noqa: F841 - comes home
    (output,) = engine.generate([PROMPT], **greedy(1))
    assert output.saves["states"].shape == (4000 * 3, 128)


def test_generation_chooses_edits_by_name(engine: Any, reference: HFReference, greedy: Greedy) -> None:
    steer(engine, VECTOR, "calm")
    with engine.edit(name="probe"):
        seen = True
        seen.save()
    plain, steered = plain_tokens(reference, engine, PROMPT, 3), steered_tokens(reference, engine, PROMPT, 3, VECTOR)
    assert tokens(engine.generate(PROMPT, edits=[], **greedy(3))) == plain
    only = engine.generate(PROMPT, edits=["probe"], **greedy(3))
    assert tokens(only) == plain
    assert list(only.edits) == ["probe"]
    both = engine.generate(PROMPT, **greedy(3))
    assert tokens(both) == steered
    assert list(both.edits) == ["calm", "probe"]
    with pytest.raises(InvalidRequestError, match="there are: 'calm', 'probe'"):
        engine.generate(PROMPT, edits=["clam"], **greedy(3))


def test_an_error_in_an_edit_ends_the_request_that_it_ran_beside(engine: Any, greedy: Greedy) -> None:
    with engine.edit(name="sharp") as (tracer, _):
        for step in tracer.all():
            rows = int(engine.model.layers[0].output[0].shape[0])
            rows.save()
            if step == 0:
                length = rows
            elif length == 3:
                raise LookupError("this prompt is refused")
    with pytest.raises(LookupError, match="this prompt is refused") as raised:
        engine.generate([PROMPT, "w1 w2"], **greedy(4))
    assert any("in the edit 'sharp'" in note for note in raised.value.__notes__)
    one, other = raised.value.outputs
    assert len(tokens(one)) == 2
    assert len(tokens(other)) == 4
    assert other.saves == {"rows": 1}
    # Nobody asks about a request of the engine's own.
    outputs = engine.vllm_entrypoint.generate([PROMPT, "w1 w2"], SamplingParams(**greedy(4)), use_tqdm=False)
    assert [len(tokens(output)) for output in outputs] == [2, 4]


class Here:
    """Known to this process alone."""


def test_an_edit_that_no_worker_can_read_is_refused_where_it_is_installed(engine: Any, greedy: Greedy) -> None:
    thing = Here()
    with pytest.raises(WireError, match="Here"), engine.edit():
        print(thing)
    assert engine.edits == ()
    assert len(tokens(engine.generate(PROMPT, **greedy(2)))) == 2


def test_the_edit_itself_cannot_be_used_in_its_block(engine: Any) -> None:
    with pytest.raises(TypeError, match=r"edit\.clear"), engine.edit() as (_, edit):
        edit.clear()
    assert engine.edits == ()


def test_containers_are_each_requests_own(engine: Any, greedy: Greedy) -> None:
    seen: list[int] = [7]
    with engine.edit():
        seen.append(int(engine.model.layers[0].output[0].shape[0]))
        seen.save()
    seen.append(8)
    outputs = engine.generate([PROMPT, "w1 w2"], **greedy(1))
    assert [output.saves["seen"] for output in outputs] == [[7, 3], [7, 2]]


# The prefix cache -----------------------------------------------------------------------------------------------------


def test_what_an_edit_changed_is_never_served_to_a_plain_request_nor_the_other_way_round(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    prompt = long_prompt(1)
    plain, steered = plain_tokens(reference, engine, prompt, 3), steered_tokens(reference, engine, prompt, 3, VECTOR)
    assert plain != steered
    edit = steer(engine, VECTOR)
    assert tokens(engine.generate(prompt, **greedy(3))) == steered
    edit.clear()
    first, second = (engine.generate(prompt, **greedy(3)) for _ in range(2))
    assert [tokens(first), tokens(second)] == [plain, plain]
    assert [first.num_cached_tokens, second.num_cached_tokens] == [0, 64]
    edit = steer(engine, VECTOR)
    again = engine.generate(prompt, **greedy(3))
    assert tokens(again) == steered
    edit.clear()
    last = engine.generate(prompt, **greedy(3))
    assert tokens(last) == plain
    assert last.num_cached_tokens == 64


def test_requests_under_the_same_uniform_edits_share_the_cache(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    prompt = long_prompt(2)
    longer = f"{prompt} {long_prompt(3, 20)}"
    steer(engine, VECTOR)
    first, second = (engine.generate(prompt, **greedy(3)) for _ in range(2))
    assert [first.num_cached_tokens, second.num_cached_tokens] == [0, 64]
    expected = steered_tokens(reference, engine, prompt, 3, VECTOR)
    assert [tokens(first), tokens(second)] == [expected, expected]
    extended = engine.generate(longer, **greedy(3))
    assert extended.num_cached_tokens == 64
    assert tokens(extended) == steered_tokens(reference, engine, longer, 3, VECTOR)
    # A second edit after it is another model.
    steer(engine, VECTOR * 0.5)
    both = engine.generate(prompt, **greedy(3))
    assert both.num_cached_tokens == 0
    assert tokens(both) == steered_tokens(reference, engine, prompt, 3, VECTOR * 1.5)
    assert engine.generate(prompt, **greedy(3)).num_cached_tokens == 64
    # A trace reads every row, and what it computes is found by others.
    with engine.trace(prompt, **greedy(3)) as tracer:
        rows = int(engine.model.layers[3].output[0].shape[0]).save()
        result = tracer.result.save()
    assert rows == 70
    assert result.num_cached_tokens == 0
    assert tokens(result) == tokens(both)


def last_row(engine: Any) -> None:
    with engine.edit() as (tracer, _):
        for _ in tracer.all():
            engine.model.layers[1].output[0][-1] += VECTOR


def later_steps(engine: Any) -> None:
    with engine.edit() as (tracer, _):
        for step in tracer.all():
            engine.model.layers[1].output[0][:] += VECTOR * (step > 0)


def first_step(engine: Any) -> None:
    with engine.edit():
        engine.model.layers[1].output[0][:] += VECTOR


def saving(engine: Any) -> None:
    with engine.edit() as (tracer, _):
        for _ in tracer.all():
            states = engine.model.layers[1].output[0]
            states[:] += VECTOR
            states.save()


@pytest.mark.parametrize("install", [last_row, later_steps, first_step, saving])
def test_all_other_edits_share_nothing(
    engine: Any, reference: HFReference, greedy: Greedy, install: Callable[[Any], None]
) -> None:
    prompt = long_prompt(10 + [last_row, later_steps, first_step, saving].index(install))
    plain = plain_tokens(reference, engine, prompt, 3)
    install(engine)
    first, second = (engine.generate(prompt, **greedy(3)) for _ in range(2))
    assert [first.num_cached_tokens, second.num_cached_tokens] == [0, 0]
    assert tokens(first) == tokens(second)
    engine.clear_edits()
    cleared = engine.generate(prompt, **greedy(3))
    assert cleared.num_cached_tokens == 0
    assert tokens(cleared) == plain


def test_an_edit_that_only_reads_sees_every_row_and_leaves_what_it_computed_to_all(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    prompt = long_prompt(20)
    plain = engine.generate(prompt, **greedy(2))
    with engine.edit():
        rows = int(engine.model.layers[1].output[0].shape[0]).save()  # noqa: F841 - comes home
    reading = engine.generate(prompt, **greedy(2))
    assert reading.saves["rows"] == 70
    assert reading.num_cached_tokens == 0
    engine.clear_edits()
    after = engine.generate(prompt, **greedy(2))
    assert after.num_cached_tokens == 64
    assert tokens(plain) == tokens(reading) == tokens(after) == plain_tokens(reference, engine, prompt, 2)


def test_a_traced_write_beside_a_uniform_edit_shares_nothing(engine: Any, greedy: Greedy) -> None:
    prompt = long_prompt(30)
    steer(engine, VECTOR)
    with engine.trace(prompt, **greedy(2)):
        engine.model.layers[2].output[0][:] *= 0.1
    first, second = (engine.generate(prompt, **greedy(2)) for _ in range(2))
    assert [first.num_cached_tokens, second.num_cached_tokens] == [0, 64]
    assert tokens(first) == tokens(second)


def test_the_callers_own_salt_still_keeps_requests_apart(engine: Any, greedy: Greedy) -> None:
    ids = engine.tokenizer.encode(long_prompt(31))
    steer(engine, VECTOR)
    salted = {"prompt_token_ids": ids, "cache_salt": "mine"}
    cached = [engine.generate(salted, **greedy(1)).num_cached_tokens for _ in range(2)]
    assert cached == [0, 64]
    assert engine.generate({"prompt_token_ids": ids}, **greedy(1)).num_cached_tokens == 0
    engine.clear_edits()
    # Two steered requests under one salt of their caller's are still apart.
    with engine.trace(salted, **greedy(1)):
        engine.model.layers[1].output[0][-1] += VECTOR
    assert engine.generate(salted, **greedy(1)).num_cached_tokens == 0
    assert engine.generate(salted, **greedy(1)).num_cached_tokens == 64


def test_a_source_that_only_seems_to_change_all_rows_is_refused_as_it_runs(engine: Any, greedy: Greedy) -> None:
    attention = engine.model.layers[1].self_attn
    kind = type(attention._module)
    declared = kind.forward.__annotations__["return"]
    kind.forward.__annotations__["return"] = tuple[torch.Tensor, torch.Tensor]
    try:
        with engine.edit(name="rows") as (tracer, edit):
            for _ in tracer.all():
                engine.model.layers[1].self_attn.output[0][:] += VECTOR
    finally:
        kind.forward.__annotations__["return"] = declared
    assert edit.program.effects.every_row
    with pytest.raises(UnsupportedFeatureError, match="differ from row to row"):
        engine.generate(PROMPT, **greedy(2))


# Sequences and prompts in parts ---------------------------------------------------------------------------------------


def test_an_edit_runs_beside_each_sequence_of_a_request(engine: Any) -> None:
    with engine.edit(name="probe") as (tracer, _):
        ids = list().save()
        for _ in tracer.iter[:3]:
            ids.append(int(engine.samples))
    output = engine.generate(PROMPT, n=2, seed=7, temperature=1.0, max_tokens=3, ignore_eos=True)
    expected = [list(completion.token_ids) for completion in output.outputs]
    assert [completion.saves["ids"] for completion in output.outputs] == expected
    assert output.saves["ids"] == expected
    assert [receipt.steps for receipt in output.edits["probe"].receipt] == [3, 3]
