"""Engines and references shared by the tests of the vLLM backend; each engine starts once per session."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_reference import HFReference
from tiny_models import make_tiny_model

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

with warnings.catch_warnings():
    # vLLM and what it imports give warnings of their own.
    warnings.simplefilter("ignore")
    import vllm.entrypoints.llm
    import vllm.model_executor.model_loader.utils  # noqa: F401


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def engine(tiny_qwen3: Path) -> Iterator[Any]:
    """One eager engine of the tiny model, shared by the whole session."""
    from nnsight.modeling.vllm import VLLM

    with VLLM(str(tiny_qwen3), dtype="float32", max_model_len=128, max_num_seqs=32) as model:
        yield model


@pytest.fixture(scope="session")
def reference(tiny_qwen3: Path) -> HFReference:
    return HFReference(tiny_qwen3)


@pytest.fixture
def greedy() -> Callable[[int], dict[str, Any]]:
    return lambda steps: {"temperature": 0.0, "max_tokens": steps, "ignore_eos": True}


@pytest.fixture(autouse=True)
def _no_grad_leaks() -> Iterator[None]:
    assert torch.is_grad_enabled()
    yield
    assert torch.is_grad_enabled()
