"""The engine that the demo and the doctor start: the real one, kept small."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnsight_cli.terminal import Terminal

# Enough for a small model anywhere, and far less than an engine takes by itself.
ENGINE_KEYWORDS = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 64 * 2**20,
    "gpu_memory_utilization": 0.05,
}


@contextlib.contextmanager
def running_model(terminal: Terminal, checkpoint: str) -> Iterator[Any]:
    """Start vLLM on a checkpoint, showing how far it is, and shut it down in the end.

    Raises:
        BackendNotFoundError: The vLLM backend is not installed.
    """
    from nnsight.plugins import load_backend

    with terminal.step("importing vLLM", "vLLM imported"):
        backend = load_backend("vllm")
    with terminal.step("building the module tree", "module tree built, without weights"):
        model = backend(checkpoint, **ENGINE_KEYWORDS)
    try:
        with terminal.step("starting the engine (about 30 s)", "engine started"):
            model.dispatch()
        yield model
    finally:
        with terminal.step("shutting the engine down", "engine shut down"):
            model.shutdown()
