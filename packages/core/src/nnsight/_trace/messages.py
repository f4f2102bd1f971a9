"""Programs and outcomes on the wire, and the codecs of what only this package knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from nnsight._capture import BlockSource
from nnsight._envoy import Envoy, ModelTree, Source, SourceOp
from nnsight._envoy.envoy import path_of
from nnsight._envoy.source import address_of
from nnsight._interleave.recording import RecordedCall, Withheld
from nnsight._interleave.visit import MISSING
from nnsight._program import Effects, FunctionCodec, MethodCodec, Pending, Program
from nnsight._trace.block_tracer import BlockTracer
from nnsight._trace.cache import Cache, CachedModule
from nnsight._trace.edit import Edit, EditTracer
from nnsight._trace.model import TracedModel
from nnsight._trace.tracer import Invoker, Tracer
from nnsight._wire import CodecTable, Limits, decode, default_codecs, encode, encode_parts, part
from nnsight.errors import UntransferableValueError, WireError
from nnsight.plugins import collect_codecs

if TYPE_CHECKING:
    import torch

    from nnsight._interleave import Budget
    from nnsight._wire import Decoder, Encoder, Fetch, Parts

VERSION = 3
TRUSTED = Limits(allow_objects=True)


class EnvoyCodec:
    """Send an envoy, or the model itself, by its path."""

    tag = "nnsight.envoy"

    def __init__(self, tree: ModelTree | None = None) -> None:
        """Read envoys of `tree`; a side that only writes needs none."""
        self._tree = tree

    def encode(self, value: Any, encoder: Encoder) -> object:
        """Write the path."""
        envoy = value if isinstance(value, Envoy) else value.envoy
        renames = envoy._tree.renames
        return [path_of(envoy), list(renames.items())] if renames else path_of(envoy)

    def decode(self, payload: Any, decoder: Decoder) -> object:
        """Find the envoy at the path."""
        if self._tree is None:
            raise WireError("the message names a module, which this receiver has not")
        path, renames = payload if isinstance(payload, list) else (payload, [])
        return self._tree.with_renames(dict(renames)).envoy(path)


class SourceCodec:
    """Send the source of a module or an op, or an op, by its path."""

    tag = "nnsight.source"

    def __init__(self, tree: ModelTree | None = None) -> None:
        """Read ops of `tree`; a side that only writes needs none."""
        self._tree = tree

    def encode(self, value: Any, encoder: Encoder) -> object:
        """Write the path."""
        return address_of(value)

    def decode(self, payload: Any, decoder: Decoder) -> object:
        """Find it at its path."""
        if self._tree is None:
            raise WireError("the message names an op of a module, which this receiver has not")
        return self._tree.envoy().get(payload)


class TracerCodec:
    """Send a tracer as the tracer that its block sees."""

    tag = "nnsight.tracer"

    def __init__(self, tree: ModelTree | None = None) -> None:
        """Make tracers of `tree`; a side that only writes needs none."""
        self._tree = tree

    def encode(self, value: Any, encoder: Encoder) -> object:
        """Write the extra names of its model."""
        tracer = value._tracer if isinstance(value, Invoker) else value
        return list(tracer.model._tree.renames.items())

    def decode(self, payload: Any, decoder: Decoder) -> object:
        """Make the tracer of a running block."""
        return BlockTracer(None if self._tree is None else self._tree.with_renames(dict(payload)))


class ResultCodec:
    """Send the finished output of a request home as the caller's own object."""

    tag = "nnsight.result"

    def __init__(self, result: object = None) -> None:
        """Write `result` as a mark, and read the mark as `result`."""
        self._result = result

    def encode(self, value: Any, encoder: Encoder) -> object:
        """Write the mark."""
        if value is not self._result:
            raise encoder.refusal(value, "it is the output of another request")
        return None

    def decode(self, payload: Any, decoder: Decoder) -> object:
        """Return the caller's object."""
        return self._result


@dataclass(frozen=True)
class HandedValue:
    """A value that one invoke hands to another, on its way through the caller's process, which does not read it.

    Attributes:
        data: The value as a message.
    """

    data: bytes


class HandedCodec:
    """Send a value that an invoke hands to another as it was written, and read it where the other runs."""

    tag = "nnsight.handed"

    def __init__(self, device_of: Callable[[str], torch.device] | None = None, *, opens: bool = False) -> None:
        """Read the value itself if `opens`, with its tensors where `device_of` says, or leave it as it was written."""
        self._device_of = device_of
        self._opens = opens

    def encode(self, value: Any, encoder: Encoder) -> object:
        """Write the message."""
        return encoder.node(value.data)

    def decode(self, payload: Any, decoder: Decoder) -> object:
        """Read the message, or keep it."""
        data = part(decoder.value(payload), bytes)
        if not self._opens:
            return HandedValue(data)
        return decode(data, codecs=decoder.codecs, limits=decoder.limits, device_of=self._device_of)


class CacheCodec:
    """Send what was recorded of modules; a value that cannot travel is withheld, and all others come home."""

    tag = "nnsight.cache"

    def encode(self, value: Any, encoder: Encoder) -> object:
        """Write the calls of each module."""
        calls = [
            [path, [[call.step, self._side(call.inputs, encoder), self._side(call.output, encoder)] for call in each]]
            for path, each in value._calls.items()
        ]
        return [type(value) is Cache, calls, value._path, value._step]

    def decode(self, payload: Any, decoder: Decoder) -> object:
        """Read them."""
        whole, modules, path, step = payload
        calls = {
            name: [RecordedCall(number, *(self._read(side, decoder) for side in sides)) for number, *sides in each]
            for name, each in modules
        }
        return (Cache if whole else CachedModule)(calls, path, step)

    def _side(self, value: object, encoder: Encoder) -> list[object]:
        if value is MISSING:
            return []
        if isinstance(value, Withheld):
            return [None, value.reason]
        try:
            return [encoder.node(value)]
        except UntransferableValueError as refusal:
            return [None, str(refusal)]

    def _read(self, side: list[Any], decoder: Decoder) -> object:
        if not side:
            return MISSING
        return Withheld(part(side[1], str)) if len(side) == 2 else decoder.value(side[0])


class PendingCodec:
    """Refuse what stands for a value of another invoke anywhere but in a variable of its own."""

    tag = "nnsight.pending"

    def encode(self, value: Any, encoder: Encoder) -> object:
        """Refuse it."""
        raise encoder.refusal(
            value,
            f"it stands for `{value.name}` of invoke {value.invoke}, which has not run yet",
            "Name the variable itself in the block that needs its value.",
        )

    def decode(self, payload: Any, decoder: Decoder) -> object:
        """Refuse it."""
        raise WireError("the message holds a value that is not there yet")


class EditCodec:
    """Refuse an edit: it is installed, chosen and removed by code outside blocks."""

    tag = "nnsight.edit"

    def encode(self, value: Any, encoder: Encoder) -> object:
        """Refuse it."""
        raise encoder.refusal(
            value, "it is an edit", "Edits are chosen with edits=[...] and removed with edit.clear(), outside blocks."
        )

    def decode(self, payload: Any, decoder: Decoder) -> object:
        """Refuse it."""
        raise WireError("the message holds an edit, which does not travel")


def write_handed(value: object, name: str) -> Parts:
    """Write a value that one invoke hands to another, as the parts of a message.

    Raises:
        UntransferableValueError: It cannot travel; the message calls it `name`.
    """
    return encode_parts(value, codecs=block_codecs(), name=name)


@lru_cache(maxsize=1)
def base_codecs() -> CodecTable:
    """Return the codecs of the core and of every plugin."""
    table = default_codecs()
    collect_codecs(table.register)
    return table


def block_codecs(
    tree: ModelTree | None = None,
    *,
    result: object = None,
    handed: HandedCodec | None = None,
    budget: Budget | None = None,
) -> CodecTable:
    """Return codecs that also carry functions, envoys, tracers and the result of the request.

    Args:
        tree: Where envoys are found, on the side that reads a program.
        result: The finished output, known to both sides.
        handed: Reads values that invokes hand to others.
        budget: What functions that are read count for.
    """
    table = _plain_block_codecs() if tree is None and handed is None else _make_block_codecs(tree, handed)
    if budget is not None:
        table = table.extended({FunctionType: FunctionCodec(budget)})
    if result is None:
        return table
    codec = ResultCodec(result)
    return table.extended({type(result): codec}, readers=[codec])


@lru_cache(maxsize=1)
def _plain_block_codecs() -> CodecTable:
    return _make_block_codecs(None, None)


def _make_block_codecs(tree: ModelTree | None, handed: HandedCodec | None) -> CodecTable:
    envoys, sources, tracers, caches = EnvoyCodec(tree), SourceCodec(tree), TracerCodec(tree), CacheCodec()
    types: dict[type, Any] = {
        FunctionType: FunctionCodec(),
        MethodType: MethodCodec(),
        Envoy: envoys,
        Source: sources,
        SourceOp: sources,
        TracedModel: envoys,
        Tracer: tracers,
        Invoker: tracers,
        EditTracer: tracers,
        Edit: EditCodec(),
        HandedValue: handed or HandedCodec(),
        Pending: PendingCodec(),
        Cache: caches,
        CachedModule: caches,
    }
    return base_codecs().extended(types, readers=[ResultCodec()])


def encode_program(program: Program) -> bytes:
    """Write a program.

    Raises:
        UntransferableValueError: A value that it names cannot travel; the message says which and what to do.
    """
    codecs = block_codecs()
    values = encode(dict(program.values), codecs=codecs, name="")
    effects = program.effects
    header = [
        VERSION,
        list(astuple(program.source)),
        list(program.parameters),
        list(program.returned),
        [
            list(effects.reads),
            list(effects.writes),
            list(effects.unknown),
            list(effects.looks_into),
            effects.row_local,
            effects.every_row,
            effects.places,
        ],
        values,
        list(program.exports),
        list(program.kept),
    ]
    return encode(header, codecs=base_codecs(), name="program")


def decode_program(
    data: bytes,
    tree: ModelTree,
    device_of: Callable[[str], torch.device] | None = None,
    *,
    budget: Budget | None = None,
) -> Program:
    """Read a program whose envoys are those of `tree`.

    Args:
        data: What `encode_program` wrote.
        tree: The modules where the program runs.
        device_of: Where tensors go, by the device that they came from.
        budget: What its functions count for; the program is started with it.

    Raises:
        WireError: The bytes are no program of this version.
    """
    header: Any = decode(data, codecs=base_codecs())
    if not isinstance(header, list) or len(header) != 8 or header[0] != VERSION:
        raise WireError("the bytes are no program of this version of nnsight; use one version on both sides")
    _, source, parameters, returned, effects, values_data, exports, kept = header
    codecs = block_codecs(tree, handed=HandedCodec(device_of, opens=True), budget=budget)
    values: Any = decode(values_data, codecs=codecs, limits=TRUSTED, device_of=device_of)
    reads, writes, unknown, looked_into, row_local, every_row, places = effects
    summary = Effects(
        tuple(reads),
        tuple(writes),
        tuple(unknown),
        tuple(looked_into),
        row_local,
        every_row,
        None if places is None else tuple([(path, side) for path, side in places]),
    )
    names = [tuple(each) for each in (parameters, returned, exports, kept)]
    return Program(BlockSource(*source), names[0], values, names[1], summary, names[2], names[3])


def encode_values(values: Mapping[str, object], result: object = None) -> Parts:
    """Write values that a block saved, as the parts of a message."""
    return encode_parts(dict(values), codecs=block_codecs(result=result), name="")


def decode_values(
    data: bytes | memoryview, result: object = None, tree: ModelTree | None = None, *, fetch: Fetch | None = None
) -> dict[str, Any]:
    """Read values that a block saved, in the process of its caller.

    Args:
        data: The message that `encode_values` made.
        result: The finished output of the request.
        tree: Where envoys are found.
        fetch: Makes the memory of tensors; see `nnsight._wire.decode`.

    Raises:
        WireError: The data are no such message.
    """
    values = decode(data, codecs=block_codecs(tree, result=result), limits=TRUSTED, fetch=fetch)
    assert isinstance(values, dict)
    return values
