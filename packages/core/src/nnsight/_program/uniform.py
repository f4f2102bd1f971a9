"""Which programs change every row alike, by constants: a proof from the syntax tree that errs on the side of no.

A block is followed statement by statement with what is known before it runs: modules, numbers and the kinds of tensors.
Loops over modules and ranges are unrolled. What is of no known form ends the proof.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nnsight._envoy import Envoy
from nnsight._program.static_values import (
    Scalar,
    TensorPlace,
    Unproven,
    columns_kind,
    constant_kind,
    item_place,
    output_place,
    static_child,
    static_items,
    static_member,
)
from nnsight._program.static_values import joined as joined_kind

# Each loop over modules is unrolled; a program with more changes than this is not looked at to its end.
_MOST_STATEMENTS: Final = 5_000
_OPERATORS: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div)
# Methods of tensors that work in place on every element alike, with the number of their arguments.
_METHODS: Final = {"zero_": 0, "add_": 1, "sub_": 1, "mul_": 1, "div_": 1, "fill_": 1}


@dataclass(frozen=True)
class Uniform:
    """What was proven of a program.

    Attributes:
        row_local: It changes the model, and only by constants that are the same for every row of a prompt, at
            locations that are known beforehand; it keeps nothing. So a prompt may be computed in several parts.
        every_row: Besides, it does the same at every step and at each location inside a layer, so that what is computed
            for a token follows from the tokens up to it.
    """

    row_local: bool = False
    every_row: bool = False


class _Step:
    """The number of the step, which no change may depend on."""


def prove_uniform(statements: Sequence[ast.stmt], values: Mapping[str, object]) -> Uniform:
    """Tell whether a block changes every row alike.

    Args:
        statements: The block.
        values: What the names bound outside it refer to.
    """
    prover = _Prover(values)
    try:
        prover.run(statements)
    except Unproven:
        return Uniform()
    if not prover.changed:
        return Uniform()
    return Uniform(row_local=True, every_row=prover.outside == 0 and prover.full_loops == 1 and prover.inside_layers)


class _Prover:
    """Follows a block.

    Attributes:
        changed: How many changes were met.
        outside: How many of them stand outside a loop over all steps.
        full_loops: How many loops over all steps were met.
        inside_layers: Whether all changes are inside layers, which run for every token.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self.changed = self.outside = self.full_loops = 0
        self.inside_layers = True
        self._outer = values
        self._bound: dict[str, object] = {}
        self._loop: Literal["none", "some", "all"] = "none"
        self._static_loops = 0
        self._before_loop: set[str] = set()
        self._left = _MOST_STATEMENTS

    # Statements -----------------------------------------------------------------------------------------------------

    def run(self, statements: Sequence[ast.stmt]) -> None:
        """Follow statements.

        Raises:
            Unproven: One is of no known form.
        """
        for statement in statements:
            self._left -= 1
            if self._left < 0:
                raise Unproven
            match statement:
                case ast.Pass() | ast.Expr(ast.Constant()):
                    pass
                case ast.Expr(ast.Call() as call):
                    self._method(call)
                case ast.Assign([ast.Name(name)], value):
                    self._bind(name, self._value(value))
                case ast.Assign([ast.Subscript() as target], value):
                    self._change(self._rows(target), value)
                case ast.AugAssign(ast.Subscript() as target, operator, value) if isinstance(operator, _OPERATORS):
                    self._change(self._rows(target), value)
                case ast.AugAssign(target, operator, value) if isinstance(operator, _OPERATORS):
                    self._change((self._tensor(_loaded(target)), False), value)
                case ast.For(target, iterable, body, []):
                    self._for(target, iterable, body)
                case _:
                    raise Unproven

    def _bind(self, name: str, value: object) -> None:
        if self._loop != "none" and name in self._before_loop:
            # It would hold something else in the next step.
            raise Unproven
        self._bound[name] = value

    def _for(self, target: ast.expr, iterable: ast.expr, body: Sequence[ast.stmt]) -> None:
        steps = self._steps(iterable)
        if steps is None:
            self._static_loops += 1
            for item in self._items(iterable):
                self._unpack(target, item)
                self.run(body)
            self._static_loops -= 1
            return
        if self._loop != "none" or self._static_loops or not isinstance(target, ast.Name):
            raise Unproven
        self.full_loops += steps == "all"
        self._before_loop = {*self._bound, *self._outer}
        self._loop = steps
        self._bound[target.id] = _Step()
        self.run(body)
        self._loop = "none"
        # After a request without a step the names would be unbound.
        self._bound = {name: value for name, value in self._bound.items() if name in self._before_loop}

    def _unpack(self, target: ast.expr, item: object) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, item)
        elif isinstance(target, ast.Tuple) and isinstance(item, tuple) and len(target.elts) == len(item):
            for each, value in zip(target.elts, item, strict=True):
                self._unpack(each, value)
        else:
            raise Unproven

    def _method(self, call: ast.Call) -> None:
        function = call.func
        if not isinstance(function, ast.Attribute) or call.keywords or _METHODS.get(function.attr) != len(call.args):
            raise Unproven
        receiver = function.value
        rows = (self._tensor(receiver), False) if not _selects_rows(receiver) else self._rows(receiver)
        self._change(rows, call.args[0] if call.args else ast.Constant(0))

    def _change(self, rows: tuple[TensorPlace, bool], value: ast.expr) -> None:
        place, one_column = rows
        kind = constant_kind(self._value(value))
        if one_column and kind is not Scalar:
            # A vector would lie along the rows.
            raise Unproven
        self.changed += 1
        self.outside += self._loop != "all"
        self.inside_layers = self.inside_layers and place.inside_layer

    # Places ---------------------------------------------------------------------------------------------------------

    def _rows(self, node: ast.expr) -> tuple[TensorPlace, bool]:
        """Return the tensor that all rows of are selected, and whether of a single column."""
        if not isinstance(node, ast.Subscript):
            raise Unproven
        place = self._tensor(node.value)
        index = node.slice
        if _is_full(index):
            return place, False
        if isinstance(index, ast.Tuple) and len(index.elts) == 2 and _is_full(index.elts[0]):
            return place, self._columns(index.elts[1])
        raise Unproven

    def _columns(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Slice):
            for bound in (node.lower, node.upper, node.step):
                if bound is not None and type(self._value(bound)) is not int:
                    raise Unproven
            return False
        return columns_kind(self._value(node)) is Scalar

    def _tensor(self, node: ast.expr) -> TensorPlace:
        value = self._value(node)
        if not isinstance(value, TensorPlace):
            raise Unproven
        return value

    # Values ---------------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> object:
        """Return what an expression is known to be before the block runs."""
        match node:
            case ast.Constant(constant):
                return constant
            case ast.Name(name):
                return self._named(name)
            case ast.Attribute(owner, name):
                return self._attribute(self._value(owner), name)
            case ast.Subscript(owner, index):
                return self._item(self._value(owner), index)
            case ast.Call(ast.Attribute(owner, "get"), [ast.Constant(str() as path)], []):
                envoy = self._value(owner)
                if isinstance(envoy, Envoy):
                    return static_member(envoy, path)
            case ast.UnaryOp(ast.USub() | ast.UAdd() as operator, operand):
                value = self._value(operand)
                if type(value) in (int, float):
                    return -value if isinstance(operator, ast.USub) else value  # type: ignore[operator]
                return constant_kind(value)
            case ast.BinOp(left, operator, right) if isinstance(operator, _OPERATORS):
                return self._computed(self._value(left), operator, self._value(right))
            case ast.List(elements) | ast.Tuple(elements):
                return tuple([self._value(element) for element in elements])
        raise Unproven

    def _named(self, name: str) -> object:
        if name in self._bound:
            value = self._bound[name]
        elif name in self._outer:
            value = self._outer[name]
        else:
            raise Unproven
        if isinstance(value, _Step):
            raise Unproven
        if isinstance(value, TensorPlace) and self._loop != "none" and name in self._before_loop:
            # It was read before the loop, and is of one step alone.
            raise Unproven
        if getattr(type(value), "stands_in", False):
            value = getattr(value, "envoy", value)
        return value

    def _attribute(self, owner: object, name: str) -> object:
        if not isinstance(owner, Envoy):
            raise Unproven
        return output_place(owner) if name == "output" else static_child(owner, name)

    def _item(self, owner: object, index: ast.expr) -> object:
        if isinstance(index, ast.Slice):
            if isinstance(owner, Envoy):
                return tuple(self._items(ast.Subscript(ast.Name("_", ast.Load()), index), owner))
            raise Unproven
        found = self._value(index)
        if isinstance(owner, TensorPlace):
            return item_place(owner, found)
        return static_items(owner, found)

    def _computed(self, left: object, operator: ast.operator, right: object) -> object:
        if type(left) is int and type(right) is int and not isinstance(operator, ast.Div):
            if isinstance(operator, ast.Add):
                return left + right
            return left - right if isinstance(operator, ast.Sub) else left * right
        return joined_kind(constant_kind(left), constant_kind(right))

    # Loops ----------------------------------------------------------------------------------------------------------

    def _steps(self, node: ast.expr) -> Literal["some", "all"] | None:
        """Tell which steps a loop goes over; None for a loop over something else."""
        match node:
            case ast.Call(ast.Attribute(owner, "all"), [], []) if self._is_tracer(owner):
                return "all"
            case ast.Attribute(owner, "iter") if self._is_tracer(owner):
                return "all"
            case ast.Subscript(ast.Attribute(owner, "iter"), index) if self._is_tracer(owner):
                return "all" if _is_full(index) else "some"
        return None

    def _is_tracer(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Name) or node.id in self._bound:
            return False
        value = self._outer.get(node.id)
        stands_in = bool(getattr(type(value), "stands_in", False))
        return stands_in and not isinstance(getattr(value, "envoy", None), Envoy)

    def _items(self, node: ast.expr, owner: Envoy | None = None) -> list[Any]:
        """Return what a loop goes over."""
        match node:
            case ast.Subscript(value, ast.Slice(lower, upper, stride)):
                found = list(owner if owner is not None else self._sequence(self._value(value)))
                bounds = [None if bound is None else self._integer(bound) for bound in (lower, upper, stride)]
                if bounds[2] == 0:
                    raise Unproven
                return found[slice(*bounds)]
            case ast.Call(ast.Name("range"), arguments, []) if self._is_builtin("range") and arguments:
                numbers = [self._integer(argument) for argument in arguments]
                if len(numbers) > 3 or numbers[2:] == [0]:
                    raise Unproven
                return self._sequence(range(*numbers))
            case ast.Call(ast.Name("enumerate"), [argument], []) if self._is_builtin("enumerate"):
                return list(enumerate(self._items(argument)))
            case ast.Call(ast.Name("zip"), [_, *_] as arguments, []) if self._is_builtin("zip"):
                return list(zip(*map(self._items, arguments), strict=False))
            case _:
                return self._sequence(self._value(node))

    def _is_builtin(self, name: str) -> bool:
        return name not in self._bound and name not in self._outer

    def _integer(self, node: ast.expr) -> int:
        value = self._value(node)
        if type(value) is not int:
            raise Unproven
        return value

    def _sequence(self, value: object) -> list[Any]:
        if isinstance(value, Envoy):
            return static_items(value, None)  # type: ignore[return-value]
        if isinstance(value, list | tuple | range) and len(value) <= self._left:
            return list(value)
        raise Unproven


def _loaded(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    raise Unproven


def _is_full(node: ast.expr) -> bool:
    if isinstance(node, ast.Slice):
        return node.lower is None and node.upper is None and node.step is None
    return isinstance(node, ast.Constant) and node.value is ...


def _selects_rows(node: ast.expr) -> bool:
    """Tell whether an expression ends in an index of all rows."""
    if not isinstance(node, ast.Subscript):
        return False
    index = node.slice
    return _is_full(index) or (isinstance(index, ast.Tuple) and bool(index.elts) and _is_full(index.elts[0]))
