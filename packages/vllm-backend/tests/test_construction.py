"""What building a model checks, says and leaves behind, without an engine."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nnsight.errors import (
    BackendNotFoundError,
    EngineError,
    InvalidRequestError,
    OutsideTraceError,
    UnsupportedFeatureError,
    UnsupportedVersionError,
)
from nnsight.modeling.vllm import VLLM


@pytest.fixture(scope="module")
def meta(tiny_qwen3: Path) -> Any:
    return VLLM(str(tiny_qwen3), dtype="float32", max_model_len=128)


def test_a_model_that_is_not_dispatched_is_a_meta_tree_with_vllms_own_names(meta: Any) -> None:
    assert meta.dispatched is False
    assert meta.vllm_entrypoint is None
    assert "Qwen3DecoderLayer" in repr(meta)
    assert "RowParallelLinear" in repr(meta.model.layers[2].mlp)
    assert meta.model.layers[0].mlp.down_proj.weight.device.type == "meta"
    assert len(meta.model.layers) == 4
    assert meta.get("model.layers.3.mlp") is meta.model.layers[3].mlp
    assert not torch.distributed.is_initialized()


def test_building_the_tree_leaves_no_process_group_and_no_variable_behind(tiny_qwen3: Path) -> None:
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    before = dict(os.environ)
    VLLM(str(tiny_qwen3), dtype="float32", tensor_parallel_size=2)
    changed = {name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)}
    assert not {name for name in changed if "RUNNER" in name or "NNSIGHT" in name}
    assert parallel_state._TP is None
    assert parallel_state._WORLD is None
    # A forked engine would take a meta module out of it.
    assert not _ROPE_DICT


def test_the_tokenizer_needs_no_engine(meta: Any) -> None:
    assert meta.tokenizer.encode("w1 w2") == [4, 5]


def test_settings_say_what_is_set_and_why(meta: Any) -> None:
    by_name = {setting.name: setting for setting in meta.settings}
    assert by_name["enforce_eager"].value is True
    assert "Python" in by_name["enforce_eager"].reason
    assert by_name["enable_chunked_prefill"].source == "nnsight"


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"mode": "fast"}, InvalidRequestError, "'sync', 'async'"),
        ({"enforce_eager": False}, InvalidRequestError, "contradicts"),
        ({"additional_config": "x"}, InvalidRequestError, "give a dict"),
        ({"additional_config": {"nnsight": {}}}, InvalidRequestError, "leave it out"),
        ({"pipeline_parallel_size": 2}, UnsupportedFeatureError, "pipeline_parallel_size=2"),
        ({"data_parallel_size": 2}, UnsupportedFeatureError, "data_parallel_size=2"),
        ({"speculative_config": {"method": "ngram"}}, UnsupportedFeatureError, "speculative_config"),
        ({"remote": True}, UnsupportedFeatureError, "True"),
        ({"taps": ["model.layers.*.output"]}, BackendNotFoundError, "tapped"),
    ],
)
def test_an_argument_that_cannot_be_served_is_refused_where_it_was_written(
    tiny_qwen3: Path, keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        VLLM(str(tiny_qwen3), **keywords)


def test_an_unknown_engine_keyword_is_vllms_own_error(tiny_qwen3: Path) -> None:
    with pytest.raises(TypeError, match="no_such_keyword"):
        VLLM(str(tiny_qwen3), no_such_keyword=1)


def test_an_unsupported_vllm_is_refused_with_the_range_and_what_is_installed() -> None:
    from nnsight_vllm.compat.versions import refuse_unsupported, supported_range

    refuse_unsupported()
    with pytest.raises(UnsupportedVersionError, match=r"0\.99\.0 is installed") as raised:
        refuse_unsupported("0.99.0")
    assert str(supported_range()) in str(raised.value)


def test_every_seam_of_the_installed_vllm_is_present_and_a_lost_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from nnsight_vllm.compat import records
    from nnsight_vllm.compat.relied_on import Name
    from nnsight_vllm.compat.versions import supported_range

    assert records.missing_seams() == []
    runner = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
    lost = (
        Name(f"{runner}.no_such_method"),
        Name(f"{runner}._sample", ("no_such_parameter",)),
        Name("vllm:NoSuchClass"),
    )
    monkeypatch.setattr(records, "NAMES", lost)
    with pytest.raises(EngineError, match=f"(?s)no_such_method.*no_such_parameter.*NoSuchClass.*{supported_range()}"):
        records.refuse_missing_seams()


def test_the_self_test_looks_at_the_names_of_the_runner_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from nnsight_vllm.compat import records
    from nnsight_vllm.compat.relied_on import Name

    monkeypatch.setattr(records, "NAMES", (Name("vllm:NoSuchClass", runner="V2"),))
    assert records.missing_seams(("V1",)) == []
    assert len(records.missing_seams(("V2",))) == len(records.missing_seams()) == 1


def test_patches_are_applied_once_and_are_inert_for_other_engines() -> None:
    from vllm.config.vllm import VllmConfig

    from nnsight_vllm.compat.records import apply_patches, patch_records, patched_targets

    apply_patches()
    first = VllmConfig.use_v2_model_runner
    apply_patches()
    assert VllmConfig.use_v2_model_runner is first
    assert patched_targets() == [record.target for record in patch_records()]


def test_values_outside_a_block_say_where_they_exist(meta: Any) -> None:
    with pytest.raises(OutsideTraceError, match="inside a block"):
        meta.logits


def _run(folder: Path, text: str) -> tuple[subprocess.CompletedProcess[str], float]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=folder, check=False
    )
    return done, time.perf_counter() - began


def test_a_script_without_a_main_guard_gets_one_message_in_the_parent(tmp_path: Path, tiny_qwen3: Path) -> None:
    done, _ = _run(
        tmp_path,
        f"""
        import time
        from nnsight.modeling.vllm import VLLM
        began = time.perf_counter()
        try:
            model = VLLM({str(tiny_qwen3)!r}, dispatch=True)
        finally:
            print("after", time.perf_counter() - began)
        """,
    )
    assert done.returncode == 1
    assert done.stderr.count("nnsight.errors.MissingMainGuardError") == 1
    assert 'if __name__ == "__main__":' in done.stderr
    assert "line 6" in done.stderr
    assert float(done.stdout.split()[-1]) < 5.0
