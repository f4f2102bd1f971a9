"""Values to messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nnsight._wire.buffer_writer import BufferWriter
from nnsight._wire.message import Parts, pack
from nnsight.errors import UntransferableValueError

if TYPE_CHECKING:
    from nnsight._wire.table import CodecTable

MAX_DEPTH = 100
WAYS_OUT = (
    "Save what you need from it as plain data (numbers, text, lists, tensors), "
    "move its class or function to a module that can be imported, or load it inside the block."
)

LEAST_INT, MOST_INT = -(2**63), 2**64 - 1
_DIRECT = frozenset({type(None), bool, float})
# Longer bytes travel beside the tensors.
_MOST_DIRECT_BYTES = 1 << 16
_UNALIASED_KEYS = frozenset({tuple, frozenset})
_KEY_LENGTH = 60
_UNDER_WAY = object()


class KeyStep(NamedTuple):
    """A step of a path into the entry of a mapping.

    Attributes:
        key: The entry's key.
    """

    key: object


Step = str | int | KeyStep


def describe_type(type_: type) -> str:
    """Name a type as a reader would look for it.

    Args:
        type_: The type.
    """
    return type_.__qualname__ if type_.__module__ == "builtins" else f"{type_.__module__}.{type_.__qualname__}"


def format_path(name: str, steps: list[Step]) -> str:
    """Write the path of a value inside another as Python would.

    Args:
        name: The name of the outermost value; empty for a dict of variables, whose keys are then names.
        steps: The way from there.
    """
    text = name
    for step in steps:
        if isinstance(step, str):
            text += f".{step}" if text and step[:1].isidentifier() else step
        elif isinstance(step, int):
            text += f"[{step}]"
        elif not text and isinstance(step.key, str):
            text = step.key
        elif isinstance(step.key, str | int | float | bytes | None):
            key = repr(step.key)
            text += f"[{key if len(key) <= _KEY_LENGTH else key[:_KEY_LENGTH] + '…'}]"
        else:
            text += f"[<{describe_type(type(step.key))}>]"
    return text or "value"


class Encoder:
    """An encoding under way, as the codecs see it.

    Attributes:
        codecs: The codecs in use.
        buffers: Where codecs put tensors and arrays.
    """

    def __init__(self, codecs: CodecTable, *, name: str = "value", copy_to_cpu: bool = True) -> None:
        """Begin an encoding.

        Args:
            codecs: The codecs to use.
            name: The outermost value's name in messages; empty for a dict of variables.
            copy_to_cpu: Whether tensors of other devices are copied; they are refused otherwise.
        """
        self.codecs = codecs
        self.copy_to_cpu = copy_to_cpu
        self.buffers = BufferWriter()
        self._name = name
        self._steps: list[Step] = []
        self._key_depth = 0
        self._nodes: dict[int, list[object]] = {}
        # So that no other value gets the id of one that was made while encoding.
        self._kept: list[object] = []
        self._outer_nodes: list[list[object]] = []
        self._shared: dict[int, int] = {}
        self._shared_nodes: list[list[object]] = []

    def node(self, value: object, step: Step = "") -> object:
        """Encode a value inside the one being encoded.

        Args:
            value: Any value.
            step: The way to it: text such as `"hooks"` or `"[...]"`, an index, or a `KeyStep`.

        Returns:
            Its node, to be put into the plain tree unchanged.

        Raises:
            UntransferableValueError: The value cannot travel.
        """
        kind = type(value)
        if kind in _DIRECT or (kind is int and LEAST_INT <= value <= MOST_INT):  # type: ignore[operator]
            return value
        if kind is bytes and len(value) <= _MOST_DIRECT_BYTES:  # type: ignore[arg-type]
            return value
        if kind is str and (value.isascii() or _is_utf8(value)):  # type: ignore[attr-defined, arg-type]
            return value
        aliased = not self._key_depth or kind not in _UNALIASED_KEYS
        if aliased:
            seen = self._nodes.get(id(value))
            if seen is not None:
                return self._reference(seen)
        codec = self.codecs.for_value(value)
        node: list[object] = [None, _UNDER_WAY]
        self._steps.append(step)
        self._outer_nodes.append(node)
        try:
            if codec is None:
                raise self.refusal(value, "no codec is registered for its type")
            if len(self._steps) > MAX_DEPTH:
                raise self.refusal(value, f"it is nested deeper than {MAX_DEPTH} levels")
            if aliased:
                self._nodes[id(value)] = node
                self._kept.append(value)
            node[0] = codec.tag
            node[1] = codec.encode(value, self)
        except BaseException:
            if aliased:
                self._nodes.pop(id(value), None)
            raise
        finally:
            self._steps.pop()
            self._outer_nodes.pop()
        return node

    def key(self, value: object, step: Step = "") -> object:
        """Encode a value that will be hashed: a key of a dict or an element of a set.

        Args:
            value: Any hashable value.
            step: The way to it.

        Returns:
            Its node, to be put into the plain tree unchanged and read with `Decoder.key`.

        Raises:
            UntransferableValueError: The value cannot travel.
        """
        self._key_depth += 1
        try:
            return self.node(value, step)
        finally:
            self._key_depth -= 1

    def forget(self) -> None:
        """Let values that come next share nothing with those that were encoded so far, even where they are the same."""
        self._nodes = {}

    def refusal(self, value: object, reason: str, advice: str = WAYS_OUT) -> UntransferableValueError:
        """Make the error that says why the value being encoded cannot travel.

        Args:
            value: The value.
            reason: What it is, or what is wrong with it, as the end of a sentence.
            advice: What to do instead, as whole sentences.
        """
        path = format_path(self._name, self._steps)
        return UntransferableValueError(
            f"`{path}`, of type `{describe_type(type(value))}`, cannot travel between processes: {reason}. {advice}"
        )

    def finish(self, root: object) -> Parts:
        """Write the message.

        Args:
            root: The outermost value's node.
        """
        self.buffers.finish()
        definitions: list[object] = []
        for index, node in enumerate(self._shared_nodes):
            # What a codec gave up writing is referred to nowhere.
            definitions.append(None if node[1] is _UNDER_WAY else list(node))
            node[:] = ["ref", index]
        return pack([root, definitions], self.buffers)

    def _reference(self, node: list[object]) -> list[object]:
        index = self._share(node)
        if node[1] is _UNDER_WAY:
            # The value contains itself. A reader meets those on the way again while it makes this one.
            for inner in reversed(self._outer_nodes):
                if inner is node:
                    break
                self._share(inner)
        return ["ref", index]

    def _share(self, node: list[object]) -> int:
        index = self._shared.get(id(node))
        if index is None:
            index = self._shared[id(node)] = len(self._shared_nodes)
            self._shared_nodes.append(node)
        return index


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode(value: object, *, codecs: CodecTable, name: str = "value", copy_to_cpu: bool = True) -> bytes:
    """Write a value as a message.

    Args:
        value: Any value that the codecs know.
        codecs: The codecs to use.
        name: The value's name in the messages of errors. When it is empty, the value is a dict of variables, and the
            paths in errors begin with their names.
        copy_to_cpu: Whether tensors of other devices are copied, which waits for the device. They are refused
            otherwise.

    Returns:
        The message.

    Raises:
        UntransferableValueError: The value, or one inside it, cannot travel.
    """
    return encode_parts(value, codecs=codecs, name=name, copy_to_cpu=copy_to_cpu).joined()


def encode_parts(value: object, *, codecs: CodecTable, name: str = "value", copy_to_cpu: bool = True) -> Parts:
    """Write a value as the parts of a message, for a receiver that need not have them joined; see `encode`.

    Tensors are read when the parts are: they must not change before that.
    """
    encoder = Encoder(codecs, name=name, copy_to_cpu=copy_to_cpu)
    try:
        return encoder.finish(encoder.node(value))
    except RecursionError as error:
        raise UntransferableValueError(
            f"`{name or 'value'}` is nested too deeply to travel between processes"
        ) from error
