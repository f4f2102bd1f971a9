"""Pieces of blocks that read, and pieces that write by one of many ways, over a small network."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nnsight import NNsight

if TYPE_CHECKING:
    from nnsight.backends import Outcome, Program, Request

WIDTH, ROWS = 4, 3


class Scaled(nn.Module):
    """Takes a keyword, so that its arguments hold a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, states: torch.Tensor, *, scale: float) -> torch.Tensor:
        return self.linear(states) * scale


class Network(nn.Module):
    """Two scaled layers, and one whose activation works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Scaled(), Scaled(), Scaled()])
        self.act = nn.ReLU(inplace=True)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            states = layer(states, scale=1.0)
        return states + self.act(states - 1.0)


def change(tensor: torch.Tensor) -> int:
    """Change a tensor in place."""
    tensor.mul_(2)
    return 0


class Tools:
    """An object of the user's with a method that changes what it is given."""

    def change(self, tensor: torch.Tensor) -> int:
        return change(tensor)

    def add(self, tensor: torch.Tensor) -> int:
        """Bear the name of a method that is harmless elsewhere."""
        return change(tensor)


class Holder:
    """An object of the user's that leads to another."""

    def __init__(self) -> None:
        self.tools = Tools()
        self.size = WIDTH


@contextlib.contextmanager
def giving(value: Any) -> Any:
    """Give a value to a `with` statement."""
    yield value


# What a block finds around it.
SURROUNDINGS: dict[str, Any] = {
    "torch": torch,
    "F": torch.nn.functional,
    "relu": torch.nn.functional.relu,
    "helper": change,
    "tools": Tools(),
    "holder": Holder(),
    "helpers": [change],
    "objects": {"tools": Tools()},
    "giving": giving,
    "flag": True,
    "name": "mul_",
    "method": torch.Tensor.mul_,
    "numbers": [1, 2],
}

HERE = "model.layers[1].output"

# Ways to come to a value of the model under the name `h`.
ALIASES = [
    f"h = {HERE}",
    f"h = {HERE}[:]",
    f"h = {HERE}.detach()",
    f"h = {HERE}.view(ROWS, WIDTH)",
    f"h = torch.as_tensor({HERE})",
    f"h, other = {HERE}, 0",
    f"[h] = [{HERE}]",
    f"h, *others = [{HERE}, 1]",
    f"(h := {HERE})",
    f"h = [{HERE}][0]",
    f"h = {{'a': {HERE}}}['a']",
    f"for h in [{HERE}]:\n    pass",
    f"h = next(iter([{HERE}]))",
    f"h = max([{HERE}], key=len)",
    f"h = list(map(lambda value: value, [{HERE}]))[0]",
    f"def get():\n    return {HERE}\nh = get()",
    f"h = (lambda: {HERE})()",
    f"match {HERE}:\n    case h:\n        pass",
    f"match [{HERE}]:\n    case [*h]:\n        h = h[0]",
    "h = getattr(model.layers[1], 'output')",
    "h = getattr(model.layers[1], 'out' + 'put')",
    f"h = []\nif flag:\n    h = {HERE}",
    f"if flag:\n    h = {HERE}\nelse:\n    h = []",
    f"h = 0\nif flag:\n    h = {HERE}\nelse:\n    h = 1",
    f"h = []\nh = h or {HERE}",
    f"h = 0\nmatch {HERE}:\n    case h:\n        pass",
    f"h = []\nfor h in [{HERE}]:\n    pass",
    f"h = 0\n(h := {HERE})",
    f"hs = []\nhs.append({HERE})\nh = hs[0]",
    f"hs = [{HERE}]\nh = hs.pop()",
    f"try:\n    raise ValueError({HERE})\nexcept ValueError as error:\n    h = error.args[0]",
    "model_ = model\nh = model_.layers[1].output",
    "h = model.get('layers.1.output')",
    "layers = [layer for layer in model.layers]\nh = layers[1].output",
]

# Ways to change what is called `h`.
CHANGES = [
    "h += 1",
    "h *= 2",
    "h[0] = 1",
    "h[:] *= 2",
    "h[0][1] = 7",
    "h.mul_(2)",
    "h.T.add_(1)",
    "h.__imul__(2)",
    "h.__setitem__(0, 1)",
    "torch.add(h, 1, out=h)",
    "torch.add(h, 1, **{'out': h})",
    "torch.add(h, 1, **dict(out=h))",
    "torch.nn.functional.relu(h, True)",
    "torch.nn.functional.relu(h, flag)",
    "torch.nn.functional.relu(h, 1)",
    "torch.nn.functional.relu(h, *[flag])",
    "torch.nn.functional.relu(h, inplace=flag)",
    "F.leaky_relu(h, 0.5, flag)",
    "relu(h, flag)",
    "functional = torch.nn.functional\nfunctional.relu(h, flag)",
    "function = torch.nn.functional.relu\nfunction(h, flag)",
    "list(map(torch.nn.functional.relu, [h], [flag]))",
    "list(map(F.relu, [h], [True]))",
    "torch.relu_(h)",
    "torch._foreach_mul_([h], 2)",
    "F.embedding(torch.tensor([0]), h, max_norm=0.001)",
    "method(h, 2)",
    "torch.Tensor.mul_(h, 2)",
    "type(h).mul_(h, 2)",
    "list(map(h.__imul__, [2]))",
    "list(map(h.mul_, [2]))",
    "list(map(getattr(h, 'mul_'), [2]))",
    "list(map(getattr(h, 'mul' + '_'), [2]))",
    "list(map(getattr(h, name), [2]))",
    "getattr(h, name)(2)",
    "change = h.mul_\nchange(2)",
    "abs = h.mul_\nabs(2)",
    "def abs(value):\n    return value\nabs = getattr(h, name)\nabs(2)",
    "(lambda tensor: tensor.add_(1))(h)",
    "list(map(lambda tensor: tensor.add_(1), [h]))",
    "def act(tensor):\n    tensor += 1\nact(h)",
    "def act(tensor):\n    def inner():\n        tensor.mul_(2)\n    inner()\nact(h)",
    "hs = []\ndef act(hs):\n    hs[0] = 1\nact(h)",
    "n = 0\ndef act(n):\n    n += 1\nact(h)",
    "n = 0\nfor n in [h]:\n    n += 1",
    "n = 0\nfor n in h:\n    n += 1",
    "n = 0\nn, m = h, 0\nn += 1",
    "d = {'h': h}\nd['h'] *= 2",
    "d = [h]\nd[0][0] = 1",
    "d = [h]\nd[0] += 1",
    "helper(h)",
    "helpers[0](h)",
    "tools.change(h)",
    "tools.add(h)",
    "holder.tools.add(h)",
    "objects['tools'].add(h)",
    "mine = objects['tools']\nmine.add(h)",
    "mine = holder.tools\nmine.add(h)",
    "list(map(helper, [h]))",
    "list(map(helpers[0], [h]))",
    "list(map(tools.change, [h]))",
    "list(map(objects['tools'].change, [h]))",
    "list(filter(helper, [h]))",
    "sorted([h], key=helper)",
    "max([h, h], key=tools.change)",
    "import operator\noperator.imul(h, 2)",
    "import operator\nlist(map(operator.imul, [h], [2]))",
    "from operator import imul\nimul(h, 2)",
    "import torch as abc\nabc.nn.functional.relu(h, flag)",
    "exec('h.mul_(2)')",
    "eval('h.mul_(2)')",
    "list(map(eval, ['h.mul_(2)'], [{'h': h}]))",
    "for h[0] in [5]:\n    pass",
    "[0 for h[0] in [5]]",
    "with giving(5) as h[0]:\n    pass",
    "h[0], other = 5, 1",
    "[h[0], *others] = [5, 1]",
    "model.layers[1].output = h * 2",
    "model.layers[1].output += 1",
    "model.layers[1].output, other = h * 2, 1",
    "for model.layers[1].output in [h * 2]:\n    pass",
    "[0 for model.layers[1].output in [h * 2]]",
    "with giving(h * 2) as model.layers[1].output:\n    pass",
    "setattr(model.layers[1], 'output', h * 2)",
    "list(map(setattr, [model.layers[1]], ['output'], [h * 2]))",
    "model.layers[1].__setattr__('output', h * 2)",
    "layer = model.layers[1]\nlayer.output = h * 2",
    "type(model.layers[1]).output.fset(model.layers[1], h * 2)",
]

# Whole ways to write, which need no name for a value.
WRITES = [
    "model.layers[2].inputs[1].update(scale=3.0)",
    "model.layers[2].inputs[1]['scale'] = 3.0",
    "given = model.layers[2].inputs[1]\ngiven.update(scale=3.0)",
    "given = model.layers[2].inputs[1]\ngiven |= {'scale': 3.0}",
    "positional, given = model.layers[2].inputs\ngiven.update(scale=3.0)",
    "dict.update(model.layers[2].inputs[1], scale=3.0)",
    "hs = [model.layers[2].inputs[1]]\nhs[0].update(scale=3.0)",
    "model.layers[2].inputs = ((torch.ones(ROWS, WIDTH),), {'scale': 1.0})",
    "model.layers[2].input[:] = 0",
    "model.layers[2].input = torch.ones(ROWS, WIDTH)",
    "model.layers[2].skip(torch.ones(ROWS, WIDTH))",
    "list(map(model.layers[2].skip, [torch.ones(ROWS, WIDTH)]))",
    "skip = model.layers[2].skip\nskip(torch.ones(ROWS, WIDTH))",
    "list(map(getattr(model.layers[2], 'skip'), [torch.ones(ROWS, WIDTH)]))",
    "model.layers[2].linear.source.F_linear_0.output = torch.ones(ROWS, WIDTH)",
    "model.layers[2].linear.source.F_linear_0.skip(torch.ones(ROWS, WIDTH))",
    "model.layers[2].source.self_linear_0.output.mul_(2)",
]

# Ways to read, which change nothing and are seen to. Each asks for what comes no earlier than the one before.
READS = [
    "a = model.layers[0].input.save()",
    "kept = [].save()\nkept.append(model.layers[0].output)",
    "d = {}\nd['a'] = model.layers[0].output * 2\nd['b'] = d['a'] + 1",
    "first, second, third = model.layers[0].output\nsum_ = first + second",
    "count = 0\nfor row in model.layers[0].output:\n    count += 1\n    low = row.min()",
    "best = torch.topk(model.layers[0].output, 2)",
    "norms = [row.norm().item() for row in model.layers[0].output]",
    "def norm(tensor):\n    return tensor.norm()\nvalue = norm(model.layers[0].output)",
    "called = model.layers[1](model.layers[0].output, scale=2.0)",
    "ranks = sorted(model.layers[0].output[0].tolist(), key=abs)",
    "positive = list(filter(lambda row: row.sum() > 0, model.layers[0].output))",
    "rectified = torch.nn.functional.relu(model.layers[0].output)",
    "size = holder.size + len(numbers)",
    "given = model.layers[1].inputs[1]['scale']",
    "groups = {'a': [], 'b': []}\ngroups['a'].append(model.layers[1].output)",
    "acted = model.act(model.layers[1].output)",
    "text = f'{model.layers[1].output.mean():.2f}'",
    "op = model.layers[1].linear.source.F_linear_0\nprint(op)",
    "if float(model.layers[1].output.sum()) > 0:\n    sign = 1\nelse:\n    sign = -1",
    "with torch.no_grad():\n    probe = model.layers[1].output @ torch.ones(WIDTH, 1)",
]


@dataclasses.dataclass(frozen=True)
class _Promised:
    """A program that runs as its summary says, as in an engine."""

    program: Program

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)

    def start(self, values: Any, **modes: Any) -> Any:
        return self.program.start(values, **{**modes, "read_only": self.program.effects.read_only})


class Watched(NNsight):
    """Keeps the programs and outcomes of its traces; where `enforced`, a read-only program is held to its promise."""

    def __init__(self, module: nn.Module, *, enforced: bool) -> None:
        super().__init__(module)
        self._enforced = enforced
        self._programs: list[Program] = []
        self._outcomes: list[Outcome] = []

    def _execute(self, requests: Sequence[Request]) -> list[Outcome]:
        self._programs = [request.program for request in requests]
        if self._enforced:
            requests = [dataclasses.replace(request, program=_Promised(request.program)) for request in requests]
        self._outcomes = super()._execute(requests)
        return self._outcomes
