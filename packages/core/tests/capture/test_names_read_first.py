"""Which names a block takes over from what ran before it."""

from __future__ import annotations

import ast
import textwrap

import pytest

from nnsight._capture.order import names_read_first


def first(text: str) -> set[str]:
    return set(names_read_first(ast.parse(textwrap.dedent(text)).body))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x = y", {"y"}),
        ("x = 1; y = x", set()),
        ("x = x + 1", {"x"}),
        ("x += 1", {"x"}),
        ("for i in r: x = i\ny = x", {"r"}),
        ("for i in r:\n    use = p\n    p = i", {"r", "p"}),
        ("if a: x = 1\ny = x", {"a"}),
        ("while (n := f()): m = n", {"f"}),
        ("with c as d: e = d", {"c"}),
        ("try: x = 1\nexcept E as e: y = e\nfinally: z = x", {"E"}),
        ("match s:\n    case {'k': v} if v > t: w = v", {"s", "t"}),
        ("def f(): return h\nh = 1", {"h"}),
        ("h = 1\ndef f(): return h", set()),
        ("y = [i for i in z if i]", {"z"}),
        ("a.b = c", {"a", "c"}),
        ("del q", {"q"}),
    ],
)
def test_a_name_counts_where_it_is_read_above_its_first_binding(text: str, names: set[str]) -> None:
    assert first(text) == names
