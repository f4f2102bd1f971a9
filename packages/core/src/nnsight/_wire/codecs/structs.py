"""Objects of the classes that msgspec makes of `msgspec.Struct`, such as vLLM's requests for an adapter."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from nnsight._wire.checks import fields, items_of, part
from nnsight._wire.codecs.objects import read_attributes, write_attributes
from nnsight._wire.encoder import describe_type
from nnsight.errors import WireError

if TYPE_CHECKING:
    from nnsight._wire.decoder import Decoder
    from nnsight._wire.encoder import Encoder
    from nnsight._wire.table import CodecTable

_META = type(msgspec.Struct)


class StructCodec:
    """Structures: the class by name, the fields and the attributes. No method of the class runs."""

    tag = "struct"

    def encode(self, value: msgspec.Struct, encoder: Encoder) -> object:
        """Write the class, the fields and the attributes."""
        kind = type(value)
        if _runs_when_derived_from(kind):
            raise encoder.refusal(value, "its class runs code of its own when another derives from it")
        nodes: list[object] = []
        for name in kind.__struct_fields__:
            nodes += [name, encoder.node(_field(kind, name).__get__(value, kind), f".{name}")]
        return [encoder.node(kind, ".__class__"), nodes, write_attributes(value, encoder)]

    def decode(self, payload: object, decoder: Decoder) -> object:
        """Make an object of the class and set its fields."""
        kind_node, field_nodes, attributes = fields(payload, 3)
        kind = decoder.value(kind_node)
        if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct) or _runs_when_derived_from(kind):
            raise WireError("the message has a structure of what is no class of structures")
        nodes = items_of(field_nodes)
        names = tuple(part(name, str) for name in nodes[::2])
        if names != kind.__struct_fields__:
            raise WireError(f"{describe_type(kind)} has other fields in this process")
        result = _empty(kind)
        decoder.remember(result)
        for name, node in zip(names, nodes[1::2], strict=True):
            msgspec.structs.force_setattr(result, name, decoder.value(node))
        read_attributes(result, attributes, decoder)
        return result


def _field(kind: type, name: str) -> Any:
    """Return what reads a field, which a subclass may have hidden behind a property."""
    return next(vars(base)[name] for base in reversed(kind.__mro__) if name in vars(base))


def _runs_when_derived_from(kind: type) -> bool:
    bases = kind.__mro__[: kind.__mro__.index(msgspec.Struct)]
    return type(kind) is not _META or any("__init_subclass__" in vars(base) for base in bases)


def _empty(kind: type[msgspec.Struct]) -> msgspec.Struct:
    """Return an object without contents; a structure's own class makes none without running its `__post_init__`."""
    result: Any = _blank(kind)(**dict.fromkeys(kind.__struct_fields__))
    result.__class__ = kind
    found: msgspec.Struct = result
    return found


# They hold their classes, so not all of them are kept.
@lru_cache(maxsize=64)
def _blank(kind: type[msgspec.Struct]) -> Any:
    """Return a class of the same layout whose objects are made without running anything, and can be changed."""

    def ready(_: msgspec.Struct) -> None:
        return None

    make: Any = _META
    return make(kind.__name__, (kind,), {"__post_init__": ready, "__module__": __name__}, frozen=False)


def add_structs(table: CodecTable) -> None:
    """Add the codec of this module to a table.

    Args:
        table: The table.
    """
    table.register(msgspec.Struct, StructCodec())
