"""Which codec writes and reads which type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from nnsight._wire.decoder import Decoder
    from nnsight._wire.encoder import Encoder

RESERVED_TAGS = frozenset({"ref"})


class ValueCodec(Protocol):
    """Writes the values of a type as a plain tree, and reads them back.

    A plain tree is made of None, bool, 64-bit int, float, str, bytes, lists, and dicts with string keys.
    """

    @property
    def tag(self) -> str:
        """Name of the kind of value in messages, such as `"nnsight.envoy"`."""

    def encode(self, value: Any, encoder: Encoder) -> object:
        """Turn a value into a plain tree.

        Values inside it are put into the tree as what `encoder.node(child, step)` returns, unchanged.

        Args:
            value: The value.
            encoder: The encoding under way.
        """

    def decode(self, payload: object, decoder: Decoder) -> object:
        """Rebuild a value from its plain tree, which may be hostile.

        Values inside it are read with `decoder.value(node)`. A codec of mutable values creates the empty value, passes
        it to `decoder.remember`, and then fills it, so that a value which contains itself can be read.

        Args:
            payload: What `encode` returned, after its travel.
            decoder: The decoding under way.
        """


Predicate = Callable[[object], bool]


class CodecTable:
    """The codecs of an encoding or a decoding.

    A value's codec is the one registered for its exact type, else for the nearest class of its MRO registered with
    `subclasses`, else the first whose predicate accepts the value.
    """

    def __init__(self) -> None:
        """Make a table without codecs."""
        self._exact: dict[type, ValueCodec] = {}
        self._inherited: dict[type, ValueCodec] = {}
        self._predicates: list[tuple[Predicate, ValueCodec]] = []
        self._tags: dict[str, ValueCodec] = {}

    def register(self, type_: type, codec: ValueCodec, *, subclasses: bool = True) -> None:
        """Add a codec for a type.

        Args:
            type_: The type of the values.
            codec: What writes and reads them.
            subclasses: Whether it also handles the type's subclasses.

        Raises:
            ValueError: Another codec has the tag.
        """
        self.register_tag(codec)
        self._exact[type_] = codec
        if subclasses:
            self._inherited[type_] = codec
        else:
            self._inherited.pop(type_, None)

    def register_predicate(self, predicate: Predicate, codec: ValueCodec) -> None:
        """Add a codec for the values that no type claims and this predicate accepts, after the earlier predicates.

        Args:
            predicate: Says whether the codec handles a value.
            codec: What writes and reads the value.

        Raises:
            ValueError: Another codec has the tag.
        """
        self.register_tag(codec)
        self._predicates.append((predicate, codec))

    def register_tag(self, codec: ValueCodec) -> None:
        """Add a codec for reading only.

        Args:
            codec: What reads the values of its tag.

        Raises:
            ValueError: Another codec has the tag.
        """
        if codec.tag in RESERVED_TAGS:
            raise ValueError(f"the tag {codec.tag!r} is reserved")
        if self._tags.setdefault(codec.tag, codec) is not codec:
            raise ValueError(f"another codec has the tag {codec.tag!r}")

    def extended(
        self,
        types: Mapping[type, ValueCodec] | None = None,
        *,
        predicates: Iterable[tuple[Predicate, ValueCodec]] = (),
        readers: Iterable[ValueCodec] = (),
    ) -> CodecTable:
        """Make a table with further codecs, which come before this table's and may replace their tags.

        Args:
            types: Codecs by type; each also handles the type's subclasses.
            predicates: Predicates with codecs, tried in order before this table's.
            readers: Codecs for reading only.

        Raises:
            ValueError: Two of the further codecs have one tag.
        """
        added = dict(types or {})
        tried_first = list(predicates)
        table = CodecTable()
        table._exact = {**self._exact, **added}
        table._inherited = {**self._inherited, **added}
        table._predicates = [*tried_first, *self._predicates]
        for codec in (*added.values(), *(codec for _, codec in tried_first), *readers):
            table.register_tag(codec)
        table._tags = {**self._tags, **table._tags}
        return table

    def for_value(self, value: object) -> ValueCodec | None:
        """Find the codec that writes a value.

        Args:
            value: Any value.
        """
        kind = type(value)
        codec = self._exact.get(kind)
        if codec is not None:
            return codec
        inherited = self._inherited
        for base in kind.__mro__[1:]:
            codec = inherited.get(base)
            if codec is not None:
                return codec
        for predicate, candidate in self._predicates:
            if predicate(value):
                return candidate
        return None

    def for_tag(self, tag: str) -> ValueCodec | None:
        """Find the codec that reads a tag.

        Args:
            tag: The name of a kind of value.
        """
        return self._tags.get(tag)
