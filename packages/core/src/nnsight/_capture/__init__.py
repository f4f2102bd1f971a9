"""Capturing the body of a `with` statement as source text instead of running it in place.

Entering a block: `find_block` finds its source, `BodySkipper` leaves its body. Running it elsewhere: `block_names`
says which variables it needs and binds, `compile_block` compiles it. Leaving it: `write_back` assigns the saved
values to the caller's variables. Functions that travel with a block go through `find_function` and
`compile_function`. Only the standard library is used.
"""

from __future__ import annotations

from nnsight._capture.compiling import compile_block, compile_definition, compile_function
from nnsight._capture.counting import counting_helpers
from nnsight._capture.finding import find_block
from nnsight._capture.functions import find_function
from nnsight._capture.names import BlockNames, block_names
from nnsight._capture.parsing import parse_block
from nnsight._capture.saves import SaveNames
from nnsight._capture.skipping import BodySkipper
from nnsight._capture.source import BlockSource, FunctionSource, parse_function
from nnsight._capture.variables import MISSING, visible_value, visible_values, write_back

__all__ = [
    "MISSING",
    "BlockNames",
    "BlockSource",
    "BodySkipper",
    "FunctionSource",
    "SaveNames",
    "block_names",
    "compile_block",
    "compile_definition",
    "compile_function",
    "counting_helpers",
    "find_block",
    "find_function",
    "parse_block",
    "parse_function",
    "visible_value",
    "visible_values",
    "write_back",
]
