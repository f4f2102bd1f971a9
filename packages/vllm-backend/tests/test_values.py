"""What an eager engine serves, against Transformers on the same checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine_runners import TOLERANCE
from nnsight.errors import InvalidRequestError, UnknownLocationError, UnsupportedFeatureError

if TYPE_CHECKING:
    from hf_reference import HFReference

PROMPT, STEPS, LAYERS = "w1 w2 w3 w4 w5", 4, 4
Greedy = Callable[[int], dict[str, Any]]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and float((one - other).abs().max()) < TOLERANCE


def test_attention_and_mlp_outputs_equal_transformers_at_every_layer_and_step(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    paths = [f"model.layers.{index}.{part}" for index in range(LAYERS) for part in ("self_attn", "mlp")]
    expected = reference.generate(engine.tokenizer.encode(PROMPT), STEPS, watch=paths)
    with engine.trace(PROMPT, **greedy(STEPS)) as tracer:
        found = {path: [] for path in paths}.save()
        for _ in tracer.iter[:STEPS]:
            for path in paths:
                found[path].append(engine.get(path).output)
    for path in paths:
        assert all(close(one, other) for one, other in zip(found[path], expected.outputs[path], strict=True)), path


def test_logits_are_what_the_sampler_is_given_and_equal_transformers(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    expected = reference.generate(engine.tokenizer.encode(PROMPT), STEPS)
    with engine.trace(PROMPT, **greedy(STEPS)) as tracer:
        logits = list().save()
        for _ in tracer.iter[:STEPS]:
            logits.append(engine.logits)
    assert [tuple(step.shape) for step in logits] == [(1, 512)] * STEPS
    assert all(close(one[0], other) for one, other in zip(logits, expected.logits, strict=True))


def test_samples_equal_the_generated_ids(engine: Any, greedy: Greedy) -> None:
    with engine.trace(PROMPT, **greedy(STEPS)) as tracer:
        ids = list().save()
        for _ in tracer.iter[:STEPS]:
            ids.append(engine.samples.item())
        result = tracer.result.save()
    assert ids == list(result.outputs[0].token_ids)


def test_an_edit_of_the_logits_reaches_the_sampler(engine: Any, greedy: Greedy) -> None:
    with engine.trace(PROMPT, **greedy(2)) as tracer:
        for _ in tracer.iter[:2]:
            engine.logits[0, 77] = 1e4
        in_place = tracer.result.save()
    with engine.trace(PROMPT, **greedy(2)) as tracer:
        for _ in tracer.iter[:2]:
            replaced = torch.full_like(engine.logits, -1.0)
            replaced[0, 88] = 1.0
            engine.logits = replaced
        replacing = tracer.result.save()
    assert list(in_place.outputs[0].token_ids) == [77, 77]
    assert list(replacing.outputs[0].token_ids) == [88, 88]


def test_an_assigned_sample_is_the_token_that_the_model_continues_from(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    with engine.trace(PROMPT, **greedy(3)) as tracer:
        for step in tracer.iter[:3]:
            if step == 0:
                engine.samples = torch.full_like(engine.samples, 5)
        result = tracer.result.save()
    ids = list(result.outputs[0].token_ids)
    assert ids[0] == 5
    assert ids[1:] == reference.generate([*engine.tokenizer.encode(PROMPT), 5], 2).tokens
    assert result.outputs[0].text.split()[0] == "w2"


def test_a_logit_lens_inside_the_block_equals_transformers(engine: Any, reference: HFReference, greedy: Greedy) -> None:
    expected = reference.generate(engine.tokenizer.encode(PROMPT), 1)
    hf = reference.model
    with engine.trace(PROMPT, **greedy(1)):
        lens = list().save()
        for layer in engine.model.layers:
            lens.append(engine.lm_head(engine.model.norm(sum(layer.output)[-1:])))
    with torch.no_grad():
        for index in range(LAYERS):
            assert close(lens[index], hf.lm_head(hf.model.norm(expected.streams[0][index][-1:])))


def test_inputs_of_every_kind_of_module_are_served(engine: Any, greedy: Greedy) -> None:
    with engine.trace(PROMPT, **greedy(1)):
        embedded = engine.model.embed_tokens.output.save()
        positions = engine.model.layers[0].input.save()
        arguments = engine.model.layers[1].inputs.save()
        normed = engine.model.layers[2].mlp.input.save()
        fused = engine.model.layers[2].mlp.gate_up_proj.output.save()
        last = engine.model.norm.output.save()
        whole = engine.model.output.save()
    assert embedded.shape == normed.shape == (5, 128)
    assert positions.tolist() == [0, 1, 2, 3, 4]
    assert len(arguments[0]) + len(arguments[1]) >= 3
    assert fused[0].shape == (5, 512)
    assert last is not None
    assert whole.shape == (5, 128)


def test_an_edit_of_an_input_changes_what_the_module_computes(engine: Any, greedy: Greedy) -> None:
    with engine.trace(PROMPT, **greedy(1)):
        engine.model.layers[3].mlp.input[:] = 0
        output = engine.model.layers[3].mlp.output.save()
    assert float(output.abs().max()) == 0.0


def test_a_module_shared_by_the_layers_is_told_apart_by_its_caller(engine: Any, greedy: Greedy) -> None:
    with engine.trace(PROMPT, **greedy(1)):
        projected = engine.model.layers[2].self_attn.qkv_proj.output[0].save()
        rotated = engine.model.layers[2].self_attn.rotary_emb.inputs.save()
    query = rotated[0][1] if len(rotated[0]) > 1 else list(rotated[1].values())[1]
    normed_rows = projected[:, : query.shape[-1]]
    assert query.shape == normed_rows.shape


def test_five_forms_of_a_prompt_give_the_same_tokens(engine: Any, greedy: Greedy) -> None:
    tokenizer = engine.tokenizer
    ids = tokenizer.encode(PROMPT)
    padded = {"input_ids": torch.tensor([[0, *ids]]), "attention_mask": torch.tensor([[0, *[1] * len(ids)]])}
    forms = [PROMPT, ids, padded, {"prompt_token_ids": ids}, {"prompt": PROMPT}]
    with engine.trace(**greedy(3)) as tracer:
        for form in forms:
            with tracer.invoke(form):
                results = tracer.result.save()
    tokens = [list(result.outputs[0].token_ids) for result in results]
    assert tokens == [tokens[0]] * 5


def test_keywords_of_an_invoke_win_over_those_of_the_trace(engine: Any, greedy: Greedy) -> None:
    with engine.trace(**greedy(4)) as tracer:
        with tracer.invoke(PROMPT):
            long = tracer.result.save()
        with tracer.invoke(PROMPT, max_new_tokens=2):
            short = tracer.result.save()
    assert len(long.outputs[0].token_ids) == 4
    assert len(short.outputs[0].token_ids) == 2


def test_an_unknown_keyword_names_the_nearest(engine: Any) -> None:
    with pytest.raises(TypeError, match=r"temprature.*did you mean temperature"):
        engine.trace(PROMPT, temprature=0.0)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (["w1", "w2"], "one invoke for each"),
        ([[1, 2], [3, 4]], "one invoke for each"),
        ("", "empty"),
        ([], "empty"),
        ([5] * 200, "max_model_len of 128"),
        ([99999], "vocabulary"),
        (3.5, "cannot be a float"),
    ],
)
def test_a_prompt_that_cannot_be_run_is_refused_with_the_reason(engine: Any, prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        engine.trace(prompt)


def test_a_value_that_vllm_refuses_is_an_error_of_the_request(engine: Any) -> None:
    with pytest.raises(InvalidRequestError, match="temperature"):
        engine.trace(PROMPT, temperature=-3.0)


def test_the_callers_own_extra_args_survive(engine: Any, greedy: Greedy) -> None:
    mine = {"mine": 1}
    with engine.trace(PROMPT, extra_args=mine, **greedy(1)):
        states = engine.model.layers[0].output.save()
    assert mine == {"mine": 1}
    assert states[0].shape == (5, 128)


def test_a_gpu_less_envoy_outside_a_block_says_where_values_exist(engine: Any) -> None:
    with pytest.raises(RuntimeError, match="inside a block"):
        print(engine.model.layers[0].output)
    with pytest.raises(UnknownLocationError, match="nearest"):
        print(engine.model.layerz)


def test_plain_requests_on_the_same_engine_generate_as_ever(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    ids = engine.tokenizer.encode(PROMPT)
    one = engine.generate(PROMPT, **greedy(4))
    several = engine.generate([PROMPT, "w7 w8"], **greedy(4))
    assert list(one.outputs[0].token_ids) == reference.generate(ids, 4).tokens
    assert len(several) == 2


def test_a_steered_request_leaves_nothing_behind_in_the_prefix_cache(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    prompt = list(range(10, 100))
    before = engine.generate(prompt, **greedy(3)).outputs[0].token_ids
    with engine.trace(prompt, **greedy(3)):
        engine.model.layers[0].output[0][:] += 5.0
    other = [*prompt, 7]
    with engine.trace(other, **greedy(3)):
        engine.model.layers[0].output[0][:] += 5.0
    assert list(engine.generate(prompt, **greedy(3)).outputs[0].token_ids) == list(before)
    assert list(engine.generate(other, **greedy(3)).outputs[0].token_ids) == reference.generate(other, 3).tokens
    # Of a prompt that nobody has sent before, the steered request is the first to fill blocks.
    fresh = list(range(110, 200))
    with engine.trace(fresh, **greedy(3)):
        engine.model.layers[0].output[0][:] += 5.0
    assert list(engine.generate(fresh, **greedy(3)).outputs[0].token_ids) == reference.generate(fresh, 3).tokens


def test_values_of_many_megabytes_come_home_and_leave_no_file(engine: Any, greedy: Greedy) -> None:
    from nnsight_vllm._transfer import PREFIX, shared_folder

    # Other engines may run on this host.
    patterns = [f"{PREFIX}{worker['process']}-*" for worker in engine._engine.workers]
    with engine.trace(PROMPT, **greedy(1)):
        states = engine.model.layers[0].output[0]
        large = states.repeat(4096, 1).save()
        small = states.save()
    assert large.shape == (5 * 4096, 128)
    assert torch.equal(large[:5], small)
    assert not [path for pattern in patterns for path in shared_folder().glob(pattern)]


def test_a_stopped_block_ends_its_request_whatever_ignore_eos_says(engine: Any, greedy: Greedy) -> None:
    with engine.trace(PROMPT, min_tokens=20, **greedy(40)) as tracer:
        for step in tracer.iter[:40]:
            token = engine.samples.save()
            if step == 2:
                tracer.stop()
    assert token.shape == (1,)
    assert len(tracer.result.outputs[0].token_ids) == 3


def test_a_request_that_ends_by_a_stop_token_serves_no_step_beyond_it(engine: Any, reference: HFReference) -> None:
    ids = reference.generate(engine.tokenizer.encode(PROMPT), 4).tokens
    with engine.trace(PROMPT, temperature=0.0, max_tokens=10, stop_token_ids=[ids[2]]) as tracer:
        steps = list().save()
        for step in tracer.all():
            engine.model.layers[0].output
            steps.append(step)
        after = "ran".save()
    assert steps == list(range(ids.index(ids[2]) + 1))
    assert after == "ran"


def test_a_number_fills_the_rows_of_its_request_whoever_shares_the_batch(engine: Any, greedy: Greedy) -> None:
    with engine.trace(**greedy(3)) as tracer:
        with tracer.invoke(PROMPT):
            for _ in tracer.iter[:3]:
                engine.samples = 77
            forced = tracer.result.save()
        with tracer.invoke("w9 w8"):
            for _ in tracer.iter[:3]:
                engine.model.layers[0].mlp.output = 0
                emptied = engine.model.layers[0].mlp.output.save()
                engine.samples = 88
            other = tracer.result.save()
    assert list(forced.outputs[0].token_ids) == [77, 77, 77]
    assert list(other.outputs[0].token_ids) == [88, 88, 88]
    assert float(torch.as_tensor(emptied).abs().max()) == 0.0


def test_reads_in_inference_mode_leave_the_engine_alive(engine: Any, greedy: Greedy) -> None:
    with engine.trace(PROMPT, **greedy(1)):
        with torch.inference_mode():
            one = engine.model.layers[0].output[0].save()
            other = engine.model.layers[1].output[0].save()
    assert one.shape == other.shape == (5, 128)


def test_a_mode_of_torch_around_a_read_is_that_requests_error(engine: Any, greedy: Greedy) -> None:
    with pytest.raises(UnsupportedFeatureError, match="inside a torch mode"), engine.trace(PROMPT, **greedy(1)):
        with torch.device("meta"):
            engine.model.layers[0].output[0].save()
    assert len(engine.generate(PROMPT, **greedy(1)).outputs[0].token_ids) == 1


def test_an_error_that_no_message_can_carry_loses_nothing_of_the_others(engine: Any, greedy: Greedy) -> None:
    with pytest.raises(ValueError, match="1180591620717411303424"):
        with engine.trace(**greedy(1)) as tracer:
            with tracer.invoke(PROMPT):
                kept = engine.logits.save()
            with tracer.invoke(PROMPT):
                raise ValueError(2**70)
    assert kept.shape == (1, 512)


def test_an_interrupted_trace_leaves_no_request_behind(engine: Any, reference: HFReference, greedy: Greedy) -> None:
    running = engine.vllm_entrypoint.llm_engine.output_processor.request_states

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not running and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        with engine.trace(PROMPT, **greedy(120)) as tracer:
            for _ in tracer.iter[:120]:
                engine.model.layers[0].output
            tracer.result.save()
    thread.join()
    assert not running
    # Neither before the engine runs another step, nor after it, when the block waits for what never comes.
    assert engine.vllm_entrypoint.collective_rpc("nnsight_discard", args=(b"\x90",)) == [b"0"]
    ids = engine.tokenizer.encode(PROMPT)
    assert list(engine.generate(PROMPT, **greedy(3)).outputs[0].token_ids) == reference.generate(ids, 3).tokens
    assert engine.vllm_entrypoint.collective_rpc("nnsight_discard", args=(b"\x90",)) == [b"0"]


def test_attention_cannot_be_called_ad_hoc(engine: Any, greedy: Greedy) -> None:
    with pytest.raises(UnsupportedFeatureError, match="keys and values"), engine.trace(PROMPT, **greedy(1)):
        states, positions = engine.model.embed_tokens.output, engine.model.layers[0].input
        engine.model.layers[0].self_attn(positions, states)
