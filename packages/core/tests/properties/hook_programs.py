"""Random programs over random networks, written twice: as the text of a block, and as plain hooks of torch.

A program is a list of places in the order in which the network reaches them, each with statements about the value
there. A statement is text with `{here}` for the place: in a block that is `model.layers[2].output`, in a hook it is an
attribute that holds a copy of the value, so both run the same Python on values that should be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from nnsight import NNsight
from tests.properties.generated import indent, run_module

WIDTH = 4


class Plain(nn.Module):
    """Returns a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, states: torch.Tensor) -> Any:
        return torch.tanh(self.inner(states)) + states


class Pair(Plain):
    """Returns a tuple, as layers with a fused residual do."""

    def forward(self, states: torch.Tensor) -> Any:
        return self.inner(states), states


class Mapping(Plain):
    """Returns a dict."""

    def forward(self, states: torch.Tensor) -> Any:
        return {"states": torch.sin(self.inner(states)), "norm": states.norm()}


KINDS = {"plain": Plain, "pair": Pair, "mapping": Mapping}


def stream(value: Any) -> torch.Tensor:
    """Return the first tensor of what a layer returns."""
    if isinstance(value, dict):
        return value["states"]
    return value[0] if isinstance(value, tuple) else value


class Network(nn.Module):
    """Layers of mixed kinds, which can be run in several steps."""

    def __init__(self, kinds: Sequence[str], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(KINDS[kind]() for kind in kinds)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            output = layer(states)
            states = output[0] + 0.5 * output[1] if isinstance(output, tuple) else stream(output)
        return states

    def steps(self, states: torch.Tensor, count: int) -> list[torch.Tensor]:
        """Run several steps, each on the last row of the one before."""
        found = []
        for _ in range(count):
            output = self(states)
            found.append(output)
            states = output[-1:]
        return found


@dataclass(frozen=True)
class Place:
    """A value of the network.

    Attributes:
        layer: Of which layer.
        child: Whether it is that of the layer's child.
        side: `input` or `output`.
        parts: How the tensors in it are reached from it.
    """

    layer: int
    child: bool
    side: str
    parts: tuple[str, ...]

    @property
    def spelled(self) -> str:
        return f"model.layers[{self.layer}]{'.inner' if self.child else ''}.{self.side}"


@dataclass(frozen=True)
class Program:
    """What is done where, and in which steps.

    Attributes:
        kinds: Of the layers.
        seed: Of the weights.
        rows: Of the prompt.
        count: Steps that the network runs; None for a single call.
        selector: The steps in which the program acts, as the index of `tracer.iter`.
        places: Statements at each place, in the order of the network.
        last: Statements after the last step.
    """

    kinds: tuple[str, ...]
    seed: int
    rows: int
    count: int | None
    selector: str
    places: tuple[tuple[Place, tuple[str, ...]], ...]
    last: str


BEGIN = "kept = []\ncount = 0\ntotal = 0.0\nprevious = None"
END = "final = (kept, count, total, previous)"


def _places(kinds: Sequence[str]) -> list[Place]:
    whole = {"plain": ("",), "pair": ("[0]", "[1]"), "mapping": ("['states']",)}
    found = []
    for index, kind in enumerate(kinds):
        found.append(Place(index, False, "input", ("",)))
        found.append(Place(index, True, "input", ("",)))
        found.append(Place(index, True, "output", ("",)))
        found.append(Place(index, False, "output", whole[kind]))
    return found


# `{t}` is a tensor of the place, `{c}` a number and `{j}` a column.
SIMPLE = [
    "kept.append({t})",
    "kept.append({t} * {c})",
    "kept.append(tuple({t}.shape))",
    "{t}[:] += {c}",
    "{t}[-1] = {c}",
    "{t}[:, {j}] -= {c}",
    "{t}.mul_({c})",
    "{t}.view(-1)[{j}::2].add_({c})",
    "{t}.t()[{j}].zero_()",
    "{t}[{t} > {c}] = {c}",
    "states = {t}\nstates *= {c}",
    "states = {t}[:]\nstates[0][{j}] = {c}",
    "torch.add({t}, {c}, out={t})",
    "add({t}, {c})",
    "count += 1",
    "total = total + {t}.sum().item()",
    "total += count",
    "previous = {t}",
    "if previous is not None:\n    {t}[:] += previous[-1] * {c}",
    # It names its place: a block that does not is where it was, and what it changes there reaches the model.
    "if previous is not None:\n    previous += {t}.shape[0] * {c}",
    "kept.append([row.sum().item() for row in {t}])",
]
REPLACING = {
    "": ["{h} = {h} * {c}", "{h} = torch.full_like({h}, {c})", "{h} = {h} + count", "{h} = torch.tanh({h}).double()"],
    "[0]": [
        "{h} = ({h}[0] * {c}, {h}[1])",
        "{h} = ({h}[1], {h}[0])",
        "first, second = {h}\n{h} = (first, second + {c})",
    ],
    "[1]": ["{h} = ({h}[0], torch.zeros_like({h}[1]))"],
    "['states']": ["{h}['states'] = {h}['states'] * {c}", "{h} = {{**{h}, 'states': {h}['states'] - {c}}}"],
}
LAST = ["", "kept.append('over')", "count *= 2", "kept.append(previous)"]
CONDITIONS = ["step % 2 == {j} % 2", "float({t}.sum()) > 0", "count > 1", "previous is None", "total > {c}"]


@st.composite
def _statement(draw: Any, place: Place, depth: int = 0) -> str:
    part = draw(st.sampled_from(place.parts))
    numbers = st.sampled_from([-1.5, 0.25, 0.5, 2.0])
    names = {"t": f"{{here}}{part}", "h": "{here}", "c": draw(numbers), "j": draw(st.integers(0, WIDTH - 1))}
    how = draw(st.integers(0, 9))
    if how == 0 and depth < 2:
        condition = draw(st.sampled_from(CONDITIONS)).format(**names)
        text = f"if {condition}:\n{indent(draw(_statement(place, depth + 1)))}"
        if draw(st.booleans()):
            text += f"\nelse:\n{indent(draw(_statement(place, depth + 1)))}"
        return text
    choices = REPLACING[part] if how in (1, 2) else SIMPLE
    return draw(st.sampled_from(choices)).format(**names)


@st.composite
def programs(draw: Any) -> Program:
    """Programs of up to a dozen statements."""
    kinds = tuple(draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4)))
    chosen = draw(st.lists(st.integers(0, 4 * len(kinds) - 1), min_size=1, max_size=6, unique=True).map(sorted))
    every = _places(kinds)
    places = tuple(
        (every[index], tuple(draw(st.lists(_statement(every[index]), min_size=1, max_size=3)))) for index in chosen
    )
    count = draw(st.one_of(st.none(), st.integers(1, 4)))
    end = count or 1
    selectors = [":", f":{end}", f"{end - 1}", "::2", f"[0, {end - 1}]" if end > 1 else "[0]", "1:"]
    last = draw(st.sampled_from(LAST))
    return Program(
        kinds, draw(st.integers(0, 3)), draw(st.integers(1, 3)), count, draw(st.sampled_from(selectors)), places, last
    )


def add(tensor: torch.Tensor, number: float) -> None:
    """Change a tensor in place, from a function outside the block."""
    tensor.add_(number)


def prompt(program: Program, which: int = 0) -> torch.Tensor:
    """Return the input of a program."""
    return torch.randn(program.rows, WIDTH, generator=torch.Generator().manual_seed(100 + which))


@dataclass
class Found:
    """What a program left, written one way or the other."""

    result: Any
    final: Any


# As a block --------------------------------------------------------------------------------------------------------


def body_of(program: Program) -> str:
    """Write a program as the body of a block."""
    inner = "\n".join(
        statement.replace("{here}", place.spelled) for place, statements in program.places for statement in statements
    )
    if program.count is None:
        middle = f"step = 0\n{inner}"
    else:
        middle = f"for step in tracer.iter[{program.selector}]:\n{indent(inner)}"
    return f"{BEGIN}\n{middle}\n{program.last}\nresult = tracer.result.save()\n{END}\nfinal.save()"


def arguments(program: Program, block: str = "") -> str:
    """Write the arguments of a program's trace after the first; `block` names the function of `model.run`."""
    steps, method = ("", "") if program.count is None else (f", {program.count}", ", method='steps'")
    return f"{steps}{block}{method}"


def as_block(program: Program, form: str) -> Found:
    """Run a program as a block: of a `with` statement, of an invoke, or as a function."""
    body = body_of(program)
    call = f"states{arguments(program)}"
    if form == "with":
        text = f"with model.trace({call}) as tracer:\n{indent(body)}\n"
    elif form == "invoke":
        text = f"with model.trace() as tracer:\n    with tracer.invoke({call}):\n{indent(body, 2)}\n"
    else:
        text = (
            f"def block(model, tracer):\n{indent(body)}\n"
            f"tracer = model.run(states{arguments(program, ', block')})\n"
            "result, final = tracer.saves['result'], tracer.saves['final']\n"
        )
    model = NNsight(Network(program.kinds, program.seed))
    names = run_module(text, model=model, states=prompt(program), torch=torch, add=add)
    return Found(names["result"], names["final"])


# As hooks ----------------------------------------------------------------------------------------------------------


class _Here:
    value: Any


def _own(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_own(item) for item in value)
    if isinstance(value, dict):
        return {name: _own(item) for name, item in value.items()}
    return value.clone()


def _landed(value: Any, live: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_landed, value, live))
    if isinstance(value, dict):
        return {name: _landed(item, live[name]) for name, item in value.items()}
    return value.to(live.dtype).clone()


def as_hooks(program: Program) -> Found:
    """Run a program as plain hooks, each on a copy of its own."""
    network = Network(program.kinds, program.seed)
    names: dict[str, Any] = {"torch": torch, "add": add}
    exec(BEGIN, names)
    step = -1

    def at(statements: Sequence[str]) -> Callable[[Any], Any]:
        text = "\n".join(statement.replace("{here}", "here.value") for statement in statements)
        code = compile(text, "<hook>", "exec")

        def act(live: Any) -> Any:
            if program.count is not None and step not in _selected(program):
                return live
            here = _Here()
            here.value = _own(live)
            names.update(here=here, step=step)
            exec(code, names)
            return _landed(here.value, live)

        return act

    def enter(module: nn.Module, args: Any) -> None:
        nonlocal step
        step += 1

    network.register_forward_pre_hook(enter)
    for place, statements in program.places:
        module = network.layers[place.layer]
        module = module.inner if place.child else module
        act = at(statements)
        if place.side == "input":
            module.register_forward_pre_hook(lambda module, args, act=act: (act(args[0]), *args[1:]))
        else:
            module.register_forward_hook(lambda module, args, output, act=act: act(output))
    states = prompt(program)
    result = network(states) if program.count is None else network.steps(states, program.count)
    exec(f"{program.last}\n{END}", names)
    return Found(result, names["final"])


def _selected(program: Program) -> Sequence[int]:
    selected = eval(f"every[{program.selector}]", {"every": _Steps(program.count or 1)})
    return list(selected)


class _Steps:
    def __init__(self, count: int) -> None:
        self._count = count

    def __getitem__(self, selector: Any) -> Sequence[int]:
        if isinstance(selector, slice):
            return range(self._count)[selector]
        return selector if isinstance(selector, list) else [selector]


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal bit for bit, whatever holds them."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other
