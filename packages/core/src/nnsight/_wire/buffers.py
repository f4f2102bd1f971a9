"""How tensors lie in a message: one flat safetensors entry per dtype, and one for the bytes of arrays."""

from __future__ import annotations

from typing import NamedTuple

import torch

BYTES_ENTRY = "bytes"
LENGTH_BYTES = 8
MOST_DIMENSIONS = 64
# A tensor from this size on has memory of its own where it is read.
OWN_BYTES = 1 << 20


class EntryKind(NamedTuple):
    """How the elements of a dtype are written.

    Attributes:
        dtype: The elements' dtype.
        stored: The safetensors name of the dtype that they are written as.
        itemsize: The bytes of an element.
        parts: How many stored elements an element takes.
    """

    dtype: torch.dtype
    stored: str
    itemsize: int
    parts: int


def _entry_kinds() -> dict[str, EntryKind]:
    stored = {
        "bool": "BOOL",
        "uint8": "U8",
        "int8": "I8",
        "uint16": "U16",
        "int16": "I16",
        "uint32": "U32",
        "int32": "I32",
        "uint64": "U64",
        "int64": "I64",
        "float16": "F16",
        "bfloat16": "BF16",
        "float32": "F32",
        "float64": "F64",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        # Safetensors has no name for these that every supported version of it knows.
        "float8_e4m3fnuz": "U8",
        "float8_e5m2fnuz": "U8",
        "float8_e8m0fnu": "U8",
        "complex64": "F32",
        "complex128": "F64",
    }
    kinds = {}
    for name, code in stored.items():
        dtype = getattr(torch, name, None)
        if isinstance(dtype, torch.dtype):
            kinds[name] = EntryKind(dtype, code, dtype.itemsize, 2 if dtype.is_complex else 1)
    return kinds


ENTRY_KINDS = _entry_kinds()
ENTRY_NAMES = {kind.dtype: name for name, kind in ENTRY_KINDS.items()}
# Joining tensors of these is not implemented on every device; their bits are joined as those of another dtype.
JOINED_AS = {
    kind.dtype: {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[kind.itemsize]
    for name, kind in ENTRY_KINDS.items()
    if name.startswith("float8") or name in ("uint16", "uint32", "uint64")
}
