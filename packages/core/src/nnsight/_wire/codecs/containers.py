"""Lists, dicts, sets and their relatives."""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, cast

from nnsight._wire.checks import fields, items_of, part
from nnsight._wire.encoder import LEAST_INT, MOST_INT, Encoder, KeyStep
from nnsight.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nnsight._wire.decoder import Decoder
    from nnsight._wire.table import CodecTable

_PLAIN = frozenset({bool, int, float})
_EQUAL_HASHES = 1000
_READ_AS_IS = frozenset({type(None), bool, int, float, str, bytes})


def write_items(items: Collection[object], encoder: Encoder) -> list[object]:
    """Encode the items of a sequence.

    Args:
        items: The items.
        encoder: The encoding under way.
    """
    if items and _PLAIN.issuperset(map(type, items)):
        numbers = cast("Collection[float]", items)
        if int not in set(map(type, items)) or (min(numbers) >= LEAST_INT and max(numbers) <= MOST_INT):
            return list(items)
    node = encoder.node
    return [node(item, index) for index, item in enumerate(items)]


def read_items(payload: object, decoder: Decoder) -> list[object]:
    """Decode the items of a sequence.

    Args:
        payload: The result of `write_items`, after its travel.
        decoder: The decoding under way.
    """
    items = items_of(payload)
    if _READ_AS_IS.issuperset(map(type, items)):
        decoder.count(len(items))
        return items
    value = decoder.value
    return [value(item) for item in items]


def write_keys(items: Iterable[object], encoder: Encoder) -> list[object]:
    """Encode the elements of a set.

    Args:
        items: The elements.
        encoder: The encoding under way.
    """
    return [encoder.key(item, "{…}") for item in items]


class KeyReader:
    """Decodes the keys of one container, and refuses keys made to have equal hashes, which take long to store."""

    def __init__(self, decoder: Decoder) -> None:
        """Begin without keys.

        Args:
            decoder: The decoding under way.
        """
        self._decoder = decoder
        self._seen: dict[int, int] = {}

    def read(self, node: object) -> object:
        """Decode a key.

        Args:
            node: What `Encoder.key` returned, after its travel.

        Raises:
            WireError: The node is not valid.
        """
        key = self._decoder.key(node)
        if type(node) is list:
            hashed = hash(key)
            count = self._seen[hashed] = self._seen.get(hashed, 0) + 1
            if count > _EQUAL_HASHES:
                raise WireError("the message has too many keys with one hash")
        return key


def read_keys(payload: object, decoder: Decoder) -> list[object]:
    """Decode the elements of a set.

    Args:
        payload: The result of `write_keys`, after its travel.
        decoder: The decoding under way.
    """
    read = KeyReader(decoder).read
    return [read(item) for item in items_of(payload)]


def write_entries(entries: Iterable[tuple[object, object]], encoder: Encoder) -> list[object]:
    """Encode the entries of a mapping, in order.

    Args:
        entries: The keys with their values.
        encoder: The encoding under way.
    """
    nodes: list[object] = []
    for key, value in entries:
        # Nearly every key is such a string, which is its own node.
        nodes.append(key if type(key) is str and key.isascii() else encoder.key(key, ".keys()"))
        nodes.append(encoder.node(value, KeyStep(key)))
    return nodes


def read_entries(payload: object, decoder: Decoder, store: Callable[[object, object], None]) -> None:
    """Decode the entries of a mapping.

    Args:
        payload: The result of `write_entries`, after its travel.
        decoder: The decoding under way.
        store: Takes each key with its value, in order.
    """
    nodes = items_of(payload)
    keys, values, value = nodes[::2], nodes[1::2], decoder.value
    if _READ_AS_IS.issuperset(map(type, keys)):
        for key, node in zip(keys, values, strict=True):
            store(key, value(node))
        return
    read = KeyReader(decoder).read
    for key, node in zip(keys, values, strict=True):
        store(read(key), value(node))


class ListCodec:
    """Lists."""

    tag = "list"

    def encode(self, value: list[object], encoder: Encoder) -> object:
        """Write the items."""
        return write_items(value, encoder)

    def decode(self, payload: object, decoder: Decoder) -> list[object]:
        """Read the items into a list that exists before them."""
        result: list[object] = []
        decoder.remember(result)
        result.extend(read_items(payload, decoder))
        return result


class TupleCodec:
    """Tuples."""

    tag = "tuple"

    def encode(self, value: tuple[object, ...], encoder: Encoder) -> object:
        """Write the items."""
        return write_items(value, encoder)

    def decode(self, payload: object, decoder: Decoder) -> tuple[object, ...]:
        """Read the items."""
        return tuple(read_items(payload, decoder))


class SetCodec:
    """Sets."""

    tag = "set"

    def encode(self, value: set[object], encoder: Encoder) -> object:
        """Write the elements."""
        return write_keys(value, encoder)

    def decode(self, payload: object, decoder: Decoder) -> set[object]:
        """Read the elements into a set that exists before them."""
        result: set[object] = set()
        decoder.remember(result)
        result.update(read_keys(payload, decoder))
        return result


class FrozensetCodec:
    """Frozen sets."""

    tag = "frozenset"

    def encode(self, value: frozenset[object], encoder: Encoder) -> object:
        """Write the elements."""
        return write_keys(value, encoder)

    def decode(self, payload: object, decoder: Decoder) -> frozenset[object]:
        """Read the elements."""
        return frozenset(read_keys(payload, decoder))


class DictCodec:
    """Dicts, ordered dicts and counters."""

    def __init__(self, tag: str, kind: type[dict[object, object]]) -> None:
        """Make a codec of a type of mapping.

        Args:
            tag: The tag.
            kind: `dict` or a subclass of it without state of its own.
        """
        self.tag = tag
        self._kind = kind

    def encode(self, value: dict[object, object], encoder: Encoder) -> object:
        """Write the entries."""
        return write_entries(value.items(), encoder)

    def decode(self, payload: object, decoder: Decoder) -> dict[object, object]:
        """Read the entries into a dict that exists before them."""
        result = self._kind()
        decoder.remember(result)
        read_entries(payload, decoder, result.__setitem__)
        return result


class DefaultdictCodec:
    """Dicts that make their missing values."""

    tag = "defaultdict"

    def encode(self, value: defaultdict[object, object], encoder: Encoder) -> object:
        """Write what makes the values, and the entries."""
        return [encoder.node(value.default_factory, ".default_factory"), write_entries(value.items(), encoder)]

    def decode(self, payload: object, decoder: Decoder) -> defaultdict[object, object]:
        """Read the entries; nothing is called."""
        factory, entries = fields(payload, 2)
        result: defaultdict[object, object] = defaultdict()
        decoder.remember(result)
        made_by = decoder.value(factory)
        if made_by is not None and not callable(made_by):
            raise WireError("the message has a defaultdict whose factory is no function")
        result.default_factory = made_by
        read_entries(entries, decoder, result.__setitem__)
        return result


class DequeCodec:
    """Double-ended queues."""

    tag = "deque"

    def encode(self, value: deque[object], encoder: Encoder) -> object:
        """Write the bound and the items."""
        return [value.maxlen, write_items(value, encoder)]

    def decode(self, payload: object, decoder: Decoder) -> deque[object]:
        """Read the items into a queue that exists before them."""
        maxlen, items = fields(payload, 2)
        result: deque[object] = deque(maxlen=None if maxlen is None else part(maxlen, int))
        decoder.remember(result)
        result.extend(read_items(items, decoder))
        return result


class PartialCodec:
    """Functions with some of their arguments, by `functools.partial`."""

    tag = "partial"

    def encode(self, value: functools.partial[object], encoder: Encoder) -> object:
        """Write the function and its arguments."""
        return [
            encoder.node(value.func, ".func"),
            encoder.node(value.args, ".args"),
            encoder.node(value.keywords, ".keywords"),
            encoder.node(vars(value), ".__dict__") if vars(value) else None,
        ]

    def decode(self, payload: object, decoder: Decoder) -> functools.partial[object]:
        """Read the function and its arguments; it is not called."""
        function, arguments, keywords, state = (decoder.value(node) for node in fields(payload, 4))
        positional = part(arguments, tuple)
        named = part(keywords, dict)
        result = functools.partial(cast("Callable[..., object]", function), *positional, **named)
        if state is not None:
            vars(result).update(part(state, dict))
        return result


def add_containers(table: CodecTable) -> None:
    """Add the codecs of this module to a table.

    Args:
        table: The table.
    """
    table.register(list, ListCodec(), subclasses=False)
    table.register(tuple, TupleCodec(), subclasses=False)
    table.register(dict, DictCodec("dict", dict), subclasses=False)
    table.register(set, SetCodec(), subclasses=False)
    table.register(frozenset, FrozensetCodec(), subclasses=False)
    table.register(OrderedDict, DictCodec("ordered_dict", OrderedDict), subclasses=False)
    table.register(Counter, DictCodec("counter", cast("type[dict[object, object]]", Counter)), subclasses=False)
    table.register(defaultdict, DefaultdictCodec(), subclasses=False)
    table.register(deque, DequeCodec(), subclasses=False)
    table.register(functools.partial, PartialCodec(), subclasses=False)
