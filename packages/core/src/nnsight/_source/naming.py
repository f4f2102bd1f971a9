"""How ops are named: the dotted call or the target of the assignment, and the occurrence in the function."""

from __future__ import annotations

import ast
from dataclasses import dataclass

# They look at the frame that calls them, so they are left as they are and are no ops.
FRAME_CALLS = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec", "breakpoint"})


@dataclass(frozen=True)
class Op:
    """One call or assignment of a function.

    Attributes:
        name: Its label, such as `qkv_split_0`.
        line: The line of its file on which it is named.
        text: The expression, as Python spells it on one line.
        is_call: Whether it is a call; otherwise it is the value of an assignment.
        repeats: Whether it stands in a loop or comprehension, so that it may happen several times in one call.
        function: For a call, what is called: a name, or attributes of one; None where it is anything else.
    """

    name: str
    line: int
    text: str
    is_call: bool
    repeats: bool
    function: ast.expr | None = None


def is_frame_call(node: ast.expr) -> bool:
    """Tell whether a node calls a function that looks at the frame around it."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FRAME_CALLS


def dotted(node: ast.expr) -> str:
    """Join the names of a chain of attributes with `_`; what is called or indexed on the way counts by its names."""
    names: list[str] = []
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript | ast.Starred):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Name):
        names.append(node.id)
    return "_".join(reversed(names))


def call_name(node: ast.Call) -> str:
    """Name what a call calls: `self_qkv_proj` for `self.qkv_proj(x)`, `call` where nothing in it has a name."""
    return dotted(node.func) or "call"


def target_name(target: ast.expr) -> str:
    """Name what an assignment assigns: `q` for `q = ...`, `q_k` for `q, k = ...`."""
    if isinstance(target, ast.Tuple | ast.List):
        return "_".join(target_name(item) for item in target.elts) or "value"
    return dotted(target) or "value"


def is_plain(node: ast.expr) -> bool:
    """Tell whether a node is a name, or attributes of one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
