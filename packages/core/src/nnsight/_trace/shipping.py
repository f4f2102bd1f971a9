"""Programs of one trace on their way to where they run: what they have in common is written, sent and read once.

Invokes of a trace mostly run one block on the same things, and differ in a number or a vector. A program is therefore
written in two messages: a template, which is the same for all of them, and the values of its own. A template holds the
block and two kinds of values. Those that no block can change, such as a module, are read once and shared by all runs.
Those that one could change are kept as bytes and read anew for each run, so that no request sees what another does.

Values that refer to each other stay in one message, so that two names of one object are two names of one object where
the block runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from operator import attrgetter
from types import FunctionType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any, Final

import torch

from nnsight._capture import BlockSource
from nnsight._envoy import Envoy, Source, SourceOp
from nnsight._program import Effects, FunctionCodec, Program
from nnsight._program.harmless import stands_in
from nnsight._trace.messages import TRUSTED, HandedCodec, HandedValue, base_codecs, block_codecs
from nnsight._wire import decode, encode
from nnsight.errors import WireError

if TYPE_CHECKING:
    from nnsight._envoy import ModelTree
    from nnsight._interleave import Budget

VERSION: Final = "shipped program 1"

_CONSTANT: Final = tuple(field.name for field in fields(Program) if field.name != "values")
_constant_of: Final = attrgetter(*_CONSTANT)

_SCALARS: Final = frozenset({NoneType, bool, int, float, complex, str, bytes, torch.dtype, torch.device})
_TENSORS: Final = frozenset({torch.Tensor, torch.nn.Parameter})


@dataclass(frozen=True, slots=True)
class Shipment:
    """One program as it travels.

    Attributes:
        template: What it has in common with others; the very same object for all of these.
        own: The values of its own; empty where it has none.
    """

    template: bytes
    own: bytes


def write_programs(programs: Sequence[Program]) -> list[Shipment]:
    """Write the programs of a trace.

    Raises:
        UntransferableValueError: A value that one of them names cannot travel; the message says which and what to do.
    """
    shipments: list[Shipment | None] = [None] * len(programs)
    alike: dict[Any, list[int]] = {}
    for number, program in enumerate(programs):
        alike.setdefault((_constant_of(program), tuple(program.values)), []).append(number)
    for numbers in alike.values():
        _write_alike([programs[number] for number in numbers], numbers, shipments)
    return [shipment for shipment in shipments if shipment is not None]


def _write_alike(programs: Sequence[Program], numbers: Sequence[int], shipments: list[Shipment | None]) -> None:
    first = programs[0]
    split = _Split.of(programs)
    codecs = block_codecs()

    def write(values: Mapping[str, object], names: Iterable[str]) -> bytes:
        chosen = {name: values[name] for name in names}
        return encode(chosen, codecs=codecs, name="") if chosen else b""

    constant = {name: getattr(first, name) for name in _CONSTANT}
    plain = {**constant, "source": astuple(first.source), "effects": astuple(first.effects)}
    header = [VERSION, plain, write(first.values, split.constant), write(first.values, split.copied)]
    template = encode(header, codecs=base_codecs(), name="program")
    for number, program in zip(numbers, programs, strict=True):
        shipments[number] = Shipment(template, write(program.values, split.own))


@dataclass(frozen=True)
class _Split:
    """Which names of programs that are alike have values that are read once, copied for each run, or their own."""

    constant: list[str]
    copied: list[str]
    own: list[str]

    @classmethod
    def of(cls, programs: Sequence[Program]) -> _Split:
        first = programs[0].values
        if len(programs) == 1:
            # The next trace may run the same block on other values.
            common = {name for name, value in first.items() if _is_lasting(value)}
        else:
            common = {
                name for name, value in first.items() if all(other.values[name] is value for other in programs[1:])
            }
        split = cls([], [], [name for name in first if name not in common])
        own = [program.values[name] for name in split.own for program in programs]
        kinds = {_kind(value) for value in own}
        tensors = {id(value) for value in own if "tensor" in kinds}
        holding = any(_kind(first[name]) == "other" for name in common)
        # A value that holds others may hold one that another name has: those travel together.
        together = "other" in kinds or (holding and "tensor" in kinds)
        for name in first:
            if name not in common:
                continue
            value, kind = first[name], _kind(first[name])
            if kind == "fixed":
                split.constant.append(name)
            elif together or id(value) in tensors:
                split.own.append(name)
            elif kind == "tensor" and not holding and programs[0].effects.read_only:
                split.constant.append(name)
            else:
                split.copied.append(name)
        return split


def _kind(value: object) -> str:
    """Tell a value that nothing can change, and that holds no other, from a tensor and from all others."""
    kind = type(value)
    if kind in _SCALARS or _is_lasting(value):
        return "fixed"
    if kind is HandedValue:
        return "handed"
    return "tensor" if kind in _TENSORS else "other"


def _is_lasting(value: object) -> bool:
    return isinstance(value, Envoy | Source | SourceOp | ModuleType | type) or stands_in(value)


class Template:
    """What programs have in common, where they run.

    Attributes:
        program: The program, with the values that all runs share.
    """

    def __init__(
        self, program: Program, copied: bytes, read: Callable[[bytes, Budget | None], dict[str, object]]
    ) -> None:
        """Keep the bytes of the values that each run is given anew."""
        self.program = program
        self._copied = copied
        self._read = read

    def values(self, own: bytes, budget: Budget | None = None) -> dict[str, object]:
        """Return the values of one run.

        Args:
            own: The values that the request brought.
            budget: What functions among them count for; the run is started with it.

        Raises:
            WireError: The bytes are no such values.
        """
        found = dict(self.program.values)
        for data in (self._copied, own):
            if data:
                found.update(self._read(data, budget))
        return found


class TemplateReader:
    """Reads templates whose envoys are those of a tree."""

    def __init__(self, tree: ModelTree, device_of: Callable[[str], torch.device] | None = None) -> None:
        """Read for one model.

        Args:
            tree: The modules where the programs run.
            device_of: Where tensors go, by the device that they came from.
        """
        self._device_of = device_of
        self._codecs = block_codecs(tree, handed=HandedCodec(device_of, opens=True))

    def read(self, data: bytes) -> Template:
        """Read a template.

        Raises:
            WireError: The bytes are no template of this version.
        """
        header: Any = decode(data, codecs=base_codecs())
        if not isinstance(header, list) or len(header) != 4 or header[0] != VERSION:
            raise WireError("the bytes are no program of this version of nnsight; use one version on both sides")
        _, plain, constant, copied = header
        parts = {**plain, "source": BlockSource(*plain["source"]), "effects": Effects(*plain["effects"])}
        program = Program(values=self._values(constant, None) if constant else {}, **parts)
        return Template(program, copied, self._values)

    def _values(self, data: bytes, budget: Budget | None) -> dict[str, object]:
        codecs = self._codecs if budget is None else self._codecs.extended({FunctionType: FunctionCodec(budget)})
        values: Any = decode(data, codecs=codecs, limits=TRUSTED, device_of=self._device_of)
        if not isinstance(values, dict):
            raise WireError("the bytes are no values of a program")
        return values
