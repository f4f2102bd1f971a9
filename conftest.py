"""What holds for every test of the workspace."""

from __future__ import annotations

import os
import signal

import pytest

# What is started in the background ignores Ctrl-C, and so would everything that it starts: tests send it to themselves.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Read when vLLM is first imported, and inherited by the processes of engines.
# vLLM would pin the workers of all engines to the same core, and several engines run at once.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # in GiB; the default is a large part of the machine's memory
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Tests compute with PyTorch before they start engines: a forked process would wait for threads that it does not have.
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")

# A project of its own, whose tests run where it is installed; see tests/packaging/test_plugin_example.py.
collect_ignore = ["tests/plugin_example"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--vllm-runner",
        action="append",
        choices=["v1", "v1-async", "v2", "v2-async", "v1-tp2", "v2-tp2"],
        help="run tests of the vLLM backend on this model runner alone; may be given several times",
    )
    parser.addoption("--soak-seconds", default=60, help="how long many callers share an engine in tests of that")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group_of(item)))
    needy = [item for item in items if item.get_closest_marker("gpu") is not None]
    if not needy or os.environ.get("NNSIGHT_REQUIRE_GPU") == "1":
        return
    import torch

    if not torch.cuda.is_available():
        for item in needy:
            item.add_marker(pytest.mark.skip(reason="needs a GPU; NNSIGHT_REQUIRE_GPU=1 makes this a failure"))


def _group_of(item: pytest.Item) -> str:
    """Return which tests must run in one process when several run at once: those that share an engine, or a file."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    engine = parameters.get("runner") or parameters.get("setting")
    return item.path.name if engine is None else f"engine {engine.name}"
