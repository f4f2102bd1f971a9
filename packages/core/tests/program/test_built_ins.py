"""A block of a module's own level reads a built-in before it binds the name, as plain statements there do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nnsight import NNsight
from tests.properties.generated import indent, run_module

MODEL = NNsight(torch.nn.Linear(2, 2))


def run(body: str) -> dict[str, Any]:
    return run_module(f"with model.trace(states):\n{indent(body)}\n", model=MODEL, states=torch.ones(1, 2))


def test_the_built_in_is_read_until_the_name_is_bound() -> None:
    names = run("ranks = sorted([-3, 1], key=abs).save()\nabs = model.output.shape[0]\nkept = abs.save()")
    assert (names["ranks"], names["kept"]) == ([1, -3], 1)


def test_the_built_in_stays_where_the_binding_is_not_reached() -> None:
    assert run("if not model.output.shape[0]:\n    abs = 1\nkept = abs(-2).save()")["kept"] == 2


def test_a_function_has_no_built_in_under_a_name_of_its_own() -> None:
    text = "def block():\n    with model.trace(states):\n        abs(-2)\n        abs = 1\nblock()\n"
    with pytest.raises(UnboundLocalError, match="abs"):
        run_module(text, model=MODEL, states=torch.ones(1, 2))
