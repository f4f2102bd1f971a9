"""A block of a module's own level reads a built-in before it binds the name, as plain statements there do."""

from __future__ import annotations

import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nnsight import NNsight

Run = Callable[[str], dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run text as a file of its own."""

    def run(text: str) -> dict[str, Any]:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        names = {"model": NNsight(torch.nn.Linear(2, 2)), "states": torch.ones(1, 2)}
        return runpy.run_path(str(path), init_globals=names)

    return run


def test_the_built_in_is_read_until_the_name_is_bound(run: Run) -> None:
    names = run(
        """
        with model.trace(states):
            ranks = sorted([-3, 1], key=abs).save()
            abs = model.output.shape[0]
            kept = abs.save()
        """
    )
    assert (names["ranks"], names["kept"]) == ([1, -3], 1)


def test_the_built_in_stays_where_the_binding_is_not_reached(run: Run) -> None:
    names = run(
        """
        with model.trace(states):
            if not model.output.shape[0]:
                abs = 1
            kept = abs(-2).save()
        """
    )
    assert names["kept"] == 2


def test_a_function_has_no_built_in_under_a_name_of_its_own(run: Run) -> None:
    with pytest.raises(UnboundLocalError, match="abs"):
        run(
            """
            def block():
                with model.trace(states):
                    abs(-2)
                    abs = 1

            block()
            """
        )
