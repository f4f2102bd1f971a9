"""A block that runs or holds more than it may is ended, with its own line and the way out."""

from __future__ import annotations

import functools
import itertools
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nnsight import NNsight
from nnsight.errors import BudgetExceededError, InvalidRequestError


class Layers(nn.Module):
    """A model of a few layers, for as many steps as it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def generate(self, x: torch.Tensor, steps: int) -> torch.Tensor:
        for _ in range(steps):
            x = self(x)
        return x


PROMPT = torch.ones(2, 4)


def limited(**limits: int | None) -> NNsight:
    return NNsight(Layers(), **limits)


def spin() -> None:
    while True:
        pass


def recurse(depth: int = 0) -> int:
    """Call itself more often than anybody waits for."""
    return recurse(depth + 1) + recurse(depth + 1) if depth < 60 else 1


twice: Callable[[int], int] = lambda depth: twice(depth + 1) + twice(depth + 1) if depth < 60 else 1  # noqa: E731


def endless() -> Any:
    while True:
        yield 0


def fail_in(model: NNsight, block: Callable[[Any], object]) -> BudgetExceededError:
    with pytest.raises(BudgetExceededError, match="step_budget=") as raised:
        model.run(PROMPT, block)
    return raised.value


def in_while(model: Any) -> None:
    while True:
        pass


def in_for(model: Any) -> None:
    for _ in itertools.count():
        pass


def in_list(model: Any) -> None:
    [number for number in itertools.count()]


def in_filtered_set(model: Any) -> None:
    {number for number in itertools.count() if number < 0}


def in_dict(model: Any) -> None:
    {number % 3: number for outer in range(10) for number in itertools.count()}


def in_expression(model: Any) -> None:
    sum(number for number in itertools.count())


def in_a_generator_of_its_own(model: Any) -> None:
    def numbers() -> Any:
        while True:
            yield 1

    list(numbers())


def in_a_class_of_its_own(model: Any) -> None:
    class Spinning:
        values = [number for number in itertools.count()]  # noqa: RUF012

    print(Spinning)


def in_coroutine(model: Any) -> None:
    async def numbers() -> Any:
        while True:
            yield 1

    async def main() -> None:
        async for _ in numbers():
            pass

    coroutine = main()
    try:
        coroutine.send(None)
    finally:
        coroutine.close()


def in_helper(model: Any) -> None:
    spin()


def in_partial(model: Any) -> None:
    functools.partial(spin)()


def in_recursion(model: Any) -> None:
    recurse()


def in_lambda(model: Any) -> None:
    twice(0)


def in_generator_of_a_helper(model: Any) -> None:
    for _ in endless():
        pass


def swallowing(model: Any) -> None:
    while True:
        try:
            while True:
                pass
        except Exception:  # noqa: BLE001
            pass
        finally:
            for _ in itertools.count():
                pass


@pytest.mark.parametrize(
    "block",
    [
        in_while,
        in_for,
        in_list,
        in_filtered_set,
        in_dict,
        in_expression,
        in_a_generator_of_its_own,
        in_a_class_of_its_own,
        in_coroutine,
        in_helper,
        in_partial,
        in_recursion,
        in_lambda,
        in_generator_of_a_helper,
        swallowing,
    ],
)
def test_a_loop_without_an_end_ends_the_block(block: Callable[[Any], object]) -> None:
    error = fail_in(limited(step_budget=20_000), block)
    assert "20,000 iterations" in str(error)


def test_the_traceback_ends_on_the_loop() -> None:
    model = limited(step_budget=1000)
    with pytest.raises(BudgetExceededError) as raised, model.trace(PROMPT):
        kept = model.layers[0].output.save()
        total = 0
        for number in itertools.count():  # the line to blame
            total += number
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert last.line is not None
    assert last.line.endswith("# the line to blame")
    assert kept.shape == (2, 4)
    assert "total" not in raised.value.saves  # type: ignore[attr-defined]


def test_the_budget_is_that_of_one_step() -> None:
    model = limited(step_budget=6000)
    with model.trace(PROMPT, steps=5, method="generate") as tracer:
        counts = [].save()
        for _ in tracer.iter[:5]:
            counts.append(sum(1 for _ in range(5000)))
            model.layers[0].output
    assert counts == [5000] * 5
    with pytest.raises(BudgetExceededError), model.trace(PROMPT, steps=5, method="generate") as tracer:
        for _ in tracer.iter[:5]:
            for _ in range(20_000):
                pass
            model.layers[0].output


def test_counted_code_does_what_it_did() -> None:
    model = limited(step_budget=100_000)

    def helper(n: int) -> Any:
        """Yield numbers."""
        yield from (number for number in range(n) if number % 2)

    with model.trace(PROMPT):
        found = [].save()
        words = {"a": 1, "b": 2}
        for index, (word, number) in enumerate(words.items()):
            found.append((index, word, number))
        else:
            found.append("else")
        n = 3
        while n and n > 1:
            n -= 1
            if n == 2:
                continue
        else:
            found.append(n)
        while True:
            break
        found.append([row + column for row in range(2) for column in range(2) if row or column])
        found.append(sorted(helper(6), key=lambda number: -number))
        found.append({key: value for key, value in words.items()})
        found.append(helper.__doc__)
        found.append((lambda x: (yield_ := x) + yield_)(4))
        found.append((lambda: None)())
        found.append(sorted(name for name in locals() if not name.startswith("__nnsight")))
        with pytest.raises(TypeError, match="not iterable"):
            for _ in 3:  # type: ignore[attr-defined]
                pass
    assert found[:9] == [
        (0, "a", 1),
        (1, "b", 2),
        "else",
        1,
        [1, 1, 2],
        [5, 3, 1],
        {"a": 1, "b": 2},
        "Yield numbers.",
        8,
    ]
    assert found[9] is None
    assert "found" in found[10]


def test_a_method_counts_where_it_travels_by_source() -> None:
    class Spinner:
        def spin(self) -> None:
            while True:
                pass

    spinner = Spinner()
    turn = spinner.spin
    model = limited(step_budget=1000)
    with pytest.raises(BudgetExceededError), model.trace(PROMPT):
        turn()


def test_other_invokes_of_the_trace_run_on() -> None:
    model = limited(step_budget=1000)
    with pytest.raises(BudgetExceededError, match="step budget"):
        with model.trace() as tracer:
            with tracer.invoke(PROMPT):
                while True:
                    pass
            with tracer.invoke(PROMPT):
                kept = model.layers[2].output.save()
    assert kept.shape == (2, 4)


def test_without_a_budget_nothing_counts_and_nothing_is_limited() -> None:
    model = limited()
    with model.trace(PROMPT):
        total = sum(1 for _ in range(300_000)).save()
        names = sorted(name for name in locals() if "count" in name).save()
    assert total == 300_000
    assert names == []


@pytest.mark.parametrize("limit", [0, -1, 1.5, "many", True])
def test_a_budget_is_a_whole_number_above_zero(limit: Any) -> None:
    with pytest.raises(InvalidRequestError, match="step_budget="):
        limited(step_budget=limit)
    with pytest.raises(InvalidRequestError, match="byte_budget="):
        limited(byte_budget=limit)


# Bytes ------------------------------------------------------------------------------------------------------------

WIDE = torch.ones(64, 4)  # 1 KiB


def test_kept_copies_count() -> None:
    model = limited(byte_budget=16 * 1024)
    with pytest.raises(BudgetExceededError, match=r"byte budget of 16.0 KiB.*byte_budget=") as raised:
        with model.trace(WIDE, steps=40, method="generate") as tracer:
            kept = []
            seen = 0
            for seen in tracer.iter[:40]:
                kept.append(model.layers[0].output)
                seen.save()
    assert 15 <= raised.value.saves["seen"] <= 18  # type: ignore[attr-defined]


def test_saved_values_count_also_where_the_block_computed_them() -> None:
    model = limited(byte_budget=64 * 1024)
    with pytest.raises(BudgetExceededError, match="byte budget"):
        with model.trace(PROMPT, steps=200, method="generate") as tracer:
            kept = [].save()
            for _ in tracer.iter[:200]:
                kept.append(model.layers[0].output.new_ones(1024))
    texts: list[str] = []
    with pytest.raises(BudgetExceededError, match="byte budget"):
        with model.trace(PROMPT, steps=200, method="generate") as tracer:
            texts = [].save()
            for step in tracer.iter[:200]:
                model.layers[0].output
                texts.append(str(step) * 4096)


def test_recorded_calls_count() -> None:
    model = limited(byte_budget=16 * 1024)
    with pytest.raises(BudgetExceededError, match="byte budget"):
        with model.trace(WIDE, steps=40, method="generate") as tracer:
            cache = tracer.cache(["layers.1"])
    with model.trace(WIDE, steps=8, method="generate") as tracer:
        cache = tracer.cache(["layers.1"])
    assert len(cache["layers.1"].output) == 8


def test_what_a_block_lets_go_of_does_not_count() -> None:
    model = limited(byte_budget=16 * 1024)
    with model.trace(WIDE, steps=100, method="generate") as tracer:
        total = 0.0
        for _ in tracer.iter[:100]:
            for layer in model.layers:
                total += layer.output.sum().item()
        total.save()
    assert isinstance(total, float)


def test_garbage_in_cycles_does_not_count() -> None:
    model = limited(byte_budget=16 * 1024)
    with model.trace(WIDE, steps=60, method="generate") as tracer:
        for _ in tracer.iter[:60]:
            cycle: list[Any] = [model.layers[0].output]
            cycle.append(cycle)
        done = "yes".save()
    assert done == "yes"


def test_a_value_counts_once_whatever_holds_it() -> None:
    model = limited(byte_budget=4 * 1024)
    with model.trace(WIDE):
        states = model.layers[0].output.save()
        views = [states[row] for row in range(64)].save()
        again = [states] * 50
        again.save()
        for _ in range(3):
            model.layers[1].output
        model.layers[2].output
    assert len(views) == 64
    assert len(again) == 50


def test_a_sparse_value_is_handed_out_under_a_budget() -> None:
    class Sparse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to_sparse()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Sparse()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).to_dense()

    model = NNsight(Outer(), byte_budget=100)
    with model.trace(PROMPT):
        found = model.inner.output.save()
    assert found.is_sparse
