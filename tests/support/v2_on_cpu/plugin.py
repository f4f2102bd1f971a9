"""What the interpreter lacks for features beyond greedy generation; loaded in every process of an engine."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import torch


def register() -> None:
    """Fill the gaps, once, in the processes of an engine; the one that starts them runs no kernel."""
    if multiprocessing.parent_process() is None:
        return
    from triton.runtime import interpreter

    if getattr(interpreter, "_v2_on_cpu", False):
        return
    interpreter._v2_on_cpu = True
    _give_math_functions()
    _ignore_pinned_memory()
    _sample_top_k_with_torch()
    _accept_integer_masks(interpreter)
    _survive_rows_of_nan(interpreter)


def _give_math_functions() -> None:
    """Sampling with a temperature calls device functions that the interpreter only declares."""
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def wrap(function: Any) -> Any:
        def interpreted(x: Any, _semantic: Any = None) -> Any:
            data = function(x.handle.data).astype(x.handle.data.dtype)
            return tl.tensor(TensorHandle(data, x.dtype.scalar), x.type)

        return interpreted

    for name in ("log1p", "exp", "log", "sqrt", "tanh", "rint"):
        if hasattr(libdevice, name):
            setattr(libdevice, name, wrap(getattr(np, name)))


class _TorchWithoutPinning:
    """`torch` for one module of vLLM; a replaced `torch.tensor` would no longer obey `torch.device` contexts."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return torch.tensor(*args, **kwargs)


def _ignore_pinned_memory() -> None:
    """vLLM 0.27 pins memory for structured output without asking the platform whether it can."""
    from vllm.v1.worker.gpu import structured_outputs

    structured_outputs.torch = _TorchWithoutPinning()


def _sample_top_k_with_torch() -> None:
    """The kernel of top-k and top-p does not interpret; vLLM has the same function in torch."""
    from vllm.v1.sample.ops import topk_topp_sampler

    def apply(logits: Any, k: Any, p: Any, *args: Any, **kwargs: Any) -> Any:
        return topk_topp_sampler.apply_top_k_top_p_pytorch(logits, k, p, allow_cpu_sync=True)

    topk_topp_sampler.apply_top_k_top_p_triton = apply


def _accept_integer_masks(interpreter: Any) -> None:
    """vLLM from 0.29 on masks with integers in structured output, which the interpreter's loads refuse."""
    import triton.language as tl

    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def boolean(mask: Any) -> Any:
        if mask.data.dtype == np.bool_:
            return mask
        return interpreter.TensorHandle(mask.data.astype(np.bool_), tl.int1)

    builder.create_masked_load = lambda self, pointers, mask, *rest: load(self, pointers, boolean(mask), *rest)
    builder.create_masked_store = lambda self, pointers, value, mask, *rest: store(
        self, pointers, value, boolean(mask), *rest
    )


def _survive_rows_of_nan(interpreter: Any) -> None:
    """Profiling runs skip attention, and the largest of nothing but NaN is an error in NumPy alone."""
    operations = interpreter.ReduceOps
    reduce = operations.min_max

    def safe(function: Any) -> Any:
        def reduced(array: Any, axis: Any = None, keepdims: bool = False) -> Any:
            if np.issubdtype(array.dtype, np.floating):
                array = np.where(np.isnan(array).all(axis=axis, keepdims=True), np.zeros_like(array), array)
            return function(array, axis=axis, keepdims=keepdims)

        return reduced

    def min_max(self: Any, x: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        return reduce(self, x, val_reduce_op, safe(idx_reduce_op) if idx_reduce_op else None)

    operations.min_max = min_max
