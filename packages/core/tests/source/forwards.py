"""Modules whose forwards are written in every way in which people write them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

SIZE = 4


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return function(self, *args, **kwargs)

    return wrapper


def double(x: torch.Tensor, *, factor: int = 2) -> torch.Tensor:
    scaled = x * factor
    return torch.relu(scaled)


def closing_over(offset: float) -> type[nn.Module]:
    class Closing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            moved = x + offset
            return torch.neg(moved)

    return Closing


class Base(nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 3.0) -> torch.Tensor:
        return torch.mul(x, scale)


class Inheriting(Base):
    __step = 1.0

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        parent = super().forward(x, scale=scale)
        return self.__add(parent)

    def __add(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, self.__step)


class Decorated(nn.Module):
    @logged
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return double(x, factor=3)


class Flexible(nn.Module):
    def forward(self, *args: torch.Tensor, shift: float = 1.0, **others: Any) -> torch.Tensor:
        total = sum(args)
        if others.get("early"):
            return torch.abs(total)
        (total := torch.sub(total, shift)).neg_()
        return total


class Looping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in range(1, 4):
            x = torch.mul(x, factor)
            x += 1
        parts = [torch.neg(row) for row in x]
        pick = lambda rows: torch.stack(rows)  # noqa: E731 - what is under test
        return pick(parts)


class Seeing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.add(x, 1)
        assert set(locals()) >= {"self", "x", "y"}, sorted(locals())
        a, b = y, {"k": f"{torch.neg(y)}"}
        self.kept = len(b)
        return a.view(-1).view(x.shape)


class Dispatching(nn.Module):
    """Hands on to the method that was chosen when it was made, as vLLM's custom ops do."""

    def __init__(self, choice: str) -> None:
        super().__init__()
        self._forward_method = getattr(self, choice)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward_method(*args, **kwargs)

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        """Compute it in PyTorch."""
        return torch.sin(x)

    def forward_cpu(self, *args: Any, **kwargs: Any) -> Any:
        """Compute it on the CPU."""
        return self.forward_native(*args, **kwargs)

    @staticmethod
    def forward_static(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x)


class Choosing(nn.Module):
    """Calls a function that only running it tells."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: dict[str, Any] = {"double": double, "tanh": torch.tanh}
        self.choice = "double"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function = self.functions[self.choice]
        return function(x)


class Generating(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        yield torch.neg(x)


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.neg(x)
        return y.view(3, 5, 7)  # does not fit


class Wrapping(nn.Module):
    """One child, called in the middle."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        alias = x
        y = self.child(alias)
        return torch.add(y, x)


class Sharing(nn.Module):
    """Two parents of one module."""

    def __init__(self) -> None:
        super().__init__()
        shared = Decorated()
        self.one, self.two = Wrapping(shared), Wrapping(shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x))
