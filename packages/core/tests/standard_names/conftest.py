"""Models that the tests of standard names share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaForCausalLM

from nnsight import NNsight
from nnsight.plugins import plugin_manager
from tests.standard_names.fused import FusedDecoder, FusedPlugin
from tiny_models import make_tiny_model


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LlamaForCausalLM:
    folder = make_tiny_model(tmp_path_factory.mktemp("llama"), "llama")
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def model(llama: LlamaForCausalLM) -> NNsight:
    return NNsight(llama)


@pytest.fixture
def fused() -> Iterator[FusedDecoder]:
    plugin = FusedPlugin()
    plugin_manager().register(plugin)
    torch.manual_seed(0)
    yield FusedDecoder()
    plugin_manager().unregister(plugin)
