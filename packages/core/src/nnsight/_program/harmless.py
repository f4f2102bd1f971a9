"""What a block may use without changing a value of the model: kinds of values, and functions by name."""

from __future__ import annotations

import inspect
from collections import deque
from functools import lru_cache
from types import BuiltinFunctionType, ModuleType, NoneType
from typing import Any, Final

import numpy as np
import torch

from nnsight._envoy import Envoy, Source, SourceOp
from nnsight._program.saves import save

SAFE_BUILTINS: Final = frozenset(
    "abs all any bool bytes complex dict divmod enumerate filter float format frozenset getattr hasattr hash id int "
    "isinstance issubclass iter len list map max min next object ord pow print range repr reversed round set slice "
    "sorted str sum super tuple type zip".split()
)
# Builtins that change what they are given, or run text: harmful wherever they are handed on.
UNSAFE_BUILTINS: Final = frozenset(
    "setattr delattr exec eval compile globals locals vars breakpoint __import__ __builtins__".split()
)
# Functions named in place by torch's own rule end in an underscore; the rest of a tensor's methods make new values.
SAFE_METHODS: Final = frozenset(
    name
    for kind in (torch.Tensor, list, dict, set, str, bytes, tuple, int, float)
    for name in dir(kind)
    if not name.endswith("_") and name not in {"set_", "apply", "map", "share_memory"}
) | {"save", "stop", "all", "cache"}
# Methods that take items out of a container or exchange them. One that only grows is refused as a value of the model.
EXCHANGING_METHODS: Final = frozenset(
    "clear pop popitem remove discard reverse setdefault update difference_update intersection_update "
    "symmetric_difference_update".split()
)
# Functions of torch that change an argument, though no underscore says so.
CHANGES_ARGUMENTS: Final = frozenset(
    "batch_norm embedding embedding_bag instance_norm native_batch_norm swap_tensors vector_to_parameters".split()
)
SAFE_MODULES: Final = frozenset({"torch", "math", "nnsight", "numpy", "time"})
# Attributes of the language that lead to nothing which changes a value.
SAFE_DUNDERS: Final = frozenset({"__class__", "__name__", "__qualname__", "__module__", "__doc__"})

_DATA = (str, bytes, int, float, complex, NoneType, range, slice, torch.dtype, torch.device, torch.Generator)
_ARRAYS = (torch.Tensor, np.ndarray, np.generic)
_COLLECTIONS = (list, tuple, set, frozenset, deque)


def stands_in(value: object) -> bool:
    """Tell whether a value is a model or a tracer, which a block sees as an envoy or its own tracer."""
    return bool(getattr(type(value), "stands_in", False))


def is_plain(value: object, seen: set[int] | None = None) -> bool:
    """Tell whether a value is data without code of its own, or stands for a part of the model."""
    if isinstance(value, (dict, *_COLLECTIONS)):
        seen = set() if seen is None else seen
        if id(value) in seen:
            return True
        seen.add(id(value))
        return all(is_plain(item, seen) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, (*_DATA, *_ARRAYS, Envoy, Source, SourceOp)) or stands_in(value)


def is_safe_function(value: object) -> bool:
    """Tell whether a function makes a new value, by torch's own rule of names."""
    name = getattr(value, "__name__", "_")
    module = getattr(value, "__module__", None) or ""
    from_torch = isinstance(value, BuiltinFunctionType) or module.partition(".")[0] in {"torch", "math"}
    safe = from_torch and not name.endswith("_") and name not in CHANGES_ARGUMENTS
    return safe or value is torch.sum or value is save


def is_harmless(value: object) -> bool:
    """Tell whether a block that names a value of its surroundings can do no harm with it, whoever is given it."""
    return isinstance(value, type | ModuleType) or is_plain(value) or is_safe_function(value)


def attribute_is_data(value: object, name: str) -> bool:
    """Tell whether an attribute of an object is plain data; its own code is not run for that."""
    found: Any = inspect.getattr_static(value, name, None)
    return is_plain(found)


@lru_cache(maxsize=256)
def place_of_inplace(name: str) -> int | None:
    """Return which positional argument of `torch.nn.functional.<name>` asks for a change in place, or None."""
    function = getattr(torch.nn.functional, name, None)
    try:
        parameters = list(inspect.signature(function).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return parameters.index("inplace") if "inplace" in parameters else None
