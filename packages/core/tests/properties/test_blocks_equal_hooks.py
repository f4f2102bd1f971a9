"""A block does what the same statements do in plain hooks, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nnsight import NNsight
from tests.properties.generated import FEW, MANY, indent, run_module
from tests.properties.hook_programs import (
    Network,
    Program,
    add,
    arguments,
    as_block,
    as_hooks,
    body_of,
    programs,
    prompt,
    same,
)

forms = st.sampled_from(["with", "invoke", "function"])
modes = st.sampled_from([torch.no_grad, torch.inference_mode])


def _a_block_equals_hooks(program: Program, form: str, mode: Any) -> None:
    with mode():
        expected = as_hooks(program)
        found = as_block(program, form)
    text = body_of(program)
    assert same(found.result, expected.result), text
    assert same(found.final, expected.final), text


@FEW
@given(programs(), forms, modes)
def test_a_block_does_what_the_same_statements_do_in_hooks(program: Program, form: str, mode: Any) -> None:
    _a_block_equals_hooks(program, form, mode)


@pytest.mark.full
@MANY
@given(programs(), forms, modes)
def test_many_blocks_do_what_the_same_statements_do_in_hooks(program: Program, form: str, mode: Any) -> None:
    _a_block_equals_hooks(program, form, mode)


def _invokes_equal_traces(several: list[Program]) -> None:
    kinds, seed = several[0].kinds, several[0].seed
    several = [program for program in several if program.kinds == kinds] or several[:1]
    parts = []
    for index, program in enumerate(several):
        parts.append(f"with tracer.invoke(prompts[{index}]{arguments(program)}):\n{indent(body_of(program))}")
    text = f"with model.trace() as tracer:\n{indent(chr(10).join(parts))}\n"
    # The blocks bind `states` themselves, which later invokes would take over.
    prompts = [prompt(program) for program in several]
    with torch.no_grad():
        expected = [as_hooks(Program(**{**vars(program), "seed": seed})) for program in several]
        names = run_module(text, model=NNsight(Network(kinds, seed)), prompts=prompts, torch=torch, add=add)
    if len(several) == 1:
        names = {name: [names[name]] for name in ("result", "final")}
    for index, one in enumerate(expected):
        assert same(names["result"][index], one.result), text
        assert same(names["final"][index], one.final), text


@FEW
@given(st.lists(programs(), min_size=2, max_size=4))
def test_invokes_of_one_trace_are_each_as_if_alone(several: list[Program]) -> None:
    _invokes_equal_traces(several)


@pytest.mark.full
@MANY
@given(st.lists(programs(), min_size=2, max_size=4))
def test_many_invokes_of_one_trace_are_each_as_if_alone(several: list[Program]) -> None:
    _invokes_equal_traces(several)
