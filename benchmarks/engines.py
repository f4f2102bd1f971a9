"""What the benchmarks that run an engine let their caller choose of it."""

from __future__ import annotations

import argparse
from typing import Any


def add_engine_options(parser: argparse.ArgumentParser, *, max_model_len: int) -> None:
    """Add the options of an engine.

    Args:
        parser: Of a benchmark.
        max_model_len: The longest sequence where the caller says nothing.
    """
    parser.add_argument("--dummy", action="store_true", help="random weights: speed is real, text is not")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--memory", type=float, default=0.25, help="share of the device's memory for each engine")
    parser.add_argument("--max-model-len", type=int, default=max_model_len)


def engine_keywords(options: argparse.Namespace, **others: Any) -> dict[str, Any]:
    """Return the keywords of an engine with these options, and with others that are the benchmark's own."""
    keywords = {
        "dtype": options.dtype,
        "max_model_len": options.max_model_len,
        "gpu_memory_utilization": options.memory,
        **others,
    }
    return {**keywords, "load_format": "dummy"} if options.dummy else keywords
