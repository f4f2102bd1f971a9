"""Engines and references shared by the tests of the vLLM backend; each engine starts once per session."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runners import RUNNERS, EngineRunner
from event_loop import Loop
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


# The default run takes these, and `nox -s full` all of them.
DEFAULT_RUNNERS = ("v1", "v2-async", "v1-tp2")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what asks for `runner`, or for an engine that it builds, on every runner, or on those that were chosen.

    Several ranks are for modules that say so with `SEVERAL_RANKS`, the promises being the same. The default run takes
    fewer runners of a module that names its own `DEFAULT_RUNNERS`, as where its engine is its own.
    """
    if "runner" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.getoption("--vllm-runner")
    several_ranks = getattr(metafunc.module, "SEVERAL_RANKS", False)
    names = [name for name in chosen or RUNNERS if several_ranks or RUNNERS[name].ranks == 1]
    default = getattr(metafunc.module, "DEFAULT_RUNNERS", DEFAULT_RUNNERS)
    runners = [
        pytest.param(RUNNERS[name], id=name, marks=() if chosen or name in default else pytest.mark.full)
        for name in names
    ]
    metafunc.parametrize("runner", runners, indirect=True, scope="session")


@pytest.fixture(scope="session")
def runner(request: pytest.FixtureRequest) -> EngineRunner:
    """The model runner, and its way of scheduling, that engines of a test are built with."""
    chosen: EngineRunner = request.param
    return chosen


@pytest.fixture(scope="session")
def engine(tiny_qwen3: Path, runner: EngineRunner) -> Iterator[Any]:
    """One eager engine of the tiny model, shared by all tests of its runner."""
    from nnsight.modeling.vllm import VLLM

    with runner.building():
        # Blocks of the prefix cache are shorter than the prompts of its tests; the CPU's default is as long as these.
        cache = {"block_size": 32}
        keywords = {
            "dtype": "float32",
            "max_model_len": 128,
            "max_num_seqs": 32,
            "byte_budget": 64 << 20,
            **cache,
            **runner.keywords,
        }
        model = VLLM(str(tiny_qwen3), dispatch=True, **keywords)
    with model:
        assert {setting.name: setting.value for setting in model.settings}["model runner"] == runner.generation
        config = model.vllm_entrypoint.llm_engine.vllm_config
        assert bool(config.scheduler_config.async_scheduling) is runner.asynchronous
        yield model


@pytest.fixture(scope="session")
def streaming(tiny_qwen3: Path, runner: EngineRunner) -> Iterator[Loop]:
    """An asynchronous engine of the tiny model, with its event loop."""
    from nnsight.modeling.vllm import VLLM

    with runner.building():
        model = VLLM(
            str(tiny_qwen3),
            mode="async",
            dispatch=True,
            dtype="float32",
            max_model_len=128,
            max_num_seqs=32,
            **runner.keywords,
        )
    loop = Loop(model)
    try:
        yield loop
    finally:
        model.shutdown()
        loop.close()


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
