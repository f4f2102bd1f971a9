"""A block as data: its source, the names it loads with their values, and what it reads and writes."""

from nnsight._program.effects import Effects, summarize
from nnsight._program.functions import FunctionCodec, MethodCodec, is_installed
from nnsight._program.program import Program
from nnsight._program.saves import SaveBook, client_saves, save, save_helpers

__all__ = [
    "Effects",
    "FunctionCodec",
    "MethodCodec",
    "Program",
    "SaveBook",
    "client_saves",
    "is_installed",
    "save",
    "save_helpers",
    "summarize",
]
