"""Looking inside a function: which calls and assignments it is made of, and the same function with a point at each.

A function is found behind its decorators (`running_function`), its syntax tree is rewritten once so that every op
passes through a callable of ours (`rewrite`), and the copy stands in for the original where somebody waits for an op
(`with_ops`). The function itself is never changed.
"""

from __future__ import annotations

from nnsight._source.listing import list_ops, show_op
from nnsight._source.naming import Op
from nnsight._source.rewriting import Rewritten, rewrite, with_ops
from nnsight._source.running import RunningFunction, forward_of, running_function
from nnsight._source.statics import UNKNOWN, called_by

__all__ = [
    "UNKNOWN",
    "Op",
    "Rewritten",
    "RunningFunction",
    "called_by",
    "forward_of",
    "list_ops",
    "rewrite",
    "running_function",
    "show_op",
    "with_ops",
]
