"""A block as data: its source, the names it loads with their values, and what it reads and writes."""

from nnsight._program.effects import Effects, summarize
from nnsight._program.functions import (
    FunctionCodec,
    MethodCodec,
    closure_values,
    global_values,
    is_installed,
    reaches_save,
)
from nnsight._program.pending import Pending
from nnsight._program.program import Program
from nnsight._program.saves import SaveBook, block_helpers, client_saves, save, save_names

__all__ = [
    "Effects",
    "FunctionCodec",
    "MethodCodec",
    "Pending",
    "Program",
    "SaveBook",
    "block_helpers",
    "client_saves",
    "closure_values",
    "global_values",
    "is_installed",
    "reaches_save",
    "save",
    "save_names",
    "summarize",
]
