"""A backend whose programs and outcomes travel as bytes, as between processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nnsight.backends import (
    Interleaver,
    ModelTree,
    Outcome,
    Request,
    TracedModel,
    WholeScope,
    decode_outcome,
    decode_program,
    encode_outcome,
    encode_program,
    finish_run,
)


class Wired(TracedModel):
    """One forward of a module for each request, in a tree that knows no extra names.

    Attributes:
        batches: How many requests came at once, each time.
        devices: What handed tensors were asked to go to.
        sizes: How many bytes each outcome took.
    """

    backend_name = "wired"

    def __init__(
        self,
        module: nn.Module,
        *,
        renames: Mapping[str, str] | None = None,
        result_of: Callable[[torch.Tensor], object] = lambda output: output,
    ) -> None:
        self._there = ModelTree(module)
        self._tree = ModelTree(module, renames=renames)
        self._result_of = result_of
        self._batches: list[int] = []
        self._devices: list[str] = []
        self._sizes: list[int] = []

    @property
    def batches(self) -> list[int]:
        return self._batches

    @property
    def devices(self) -> list[str]:
        return self._devices

    @property
    def sizes(self) -> list[int]:
        return self._sizes

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0]

    def _execute(self, requests: Sequence[Request]) -> list[Outcome]:
        self._batches.append(len(requests))
        return [
            decode_outcome(self._run(encode_program(request.program), request.prepared), self._tree)
            for request in requests
        ]

    def _device_of(self, text: str) -> torch.device:
        self._devices.append(text)
        return torch.device("cpu")

    def _run(self, data: bytes, value: torch.Tensor) -> bytes:
        program = decode_program(data, self._there, self._device_of)
        run = program.start(program.values, grad=False, read_only=program.effects.read_only)
        interleaver = Interleaver(self._there)
        interleaver.begin_step({run: WholeScope()}, {run: 0})
        try:
            output = self._there.root(value)
        except Exception as error:  # noqa: BLE001 - it is the request's
            interleaver.disarm()
            return encode_outcome(finish_run(run, program, error=error), program)
        interleaver.end_step()
        reply = encode_outcome(finish_run(run, program, result=self._result_of(output)), program)
        self._sizes.append(len(reply))
        return reply
