"""Members of enumerations, exceptions, and objects of importable classes."""

from __future__ import annotations

import enum
import types
import weakref
from typing import TYPE_CHECKING, Any, cast

from nnsight._wire.checks import fields, items_of, part
from nnsight._wire.codecs.contents import content_base, empty_object, fill_object, write_contents
from nnsight._wire.encoder import describe_type
from nnsight.errors import WireError

if TYPE_CHECKING:
    from nnsight._wire.decoder import Decoder
    from nnsight._wire.encoder import Encoder
    from nnsight._wire.table import CodecTable

_POINTER_BYTES = 8
# Flags of types in C: the attributes' dict is outside the object, and the type was made at run time.
_MANAGED_DICT, _HEAP_TYPE = 1 << 4, 1 << 9


def slot_members(kind: type) -> dict[str, types.MemberDescriptorType]:
    """Find the slots of a class and its bases.

    Args:
        kind: A class.

    Returns:
        What reads and sets each slot, by the slot's name after the place of its class among the bases.
    """
    members = {}
    for index, base in enumerate(reversed(kind.__mro__)):
        if "__slots__" in vars(base):
            for name, member in vars(base).items():
                if isinstance(member, types.MemberDescriptorType):
                    members[f"{index}.{name}"] = member
    return members


def holds_only_python_state(kind: type, base: type, slots: int) -> bool:
    """Say whether attributes, slots and the contents of a builtin are all that the objects of a class hold.

    It is the test by which `object.__getstate__` refuses the others.

    Args:
        kind: A class.
        base: Its builtin base; `object` when it has none.
        slots: How many slots it and its bases have.
    """
    for entry in kind.__mro__:
        if entry is base:
            break
        if not entry.__flags__ & _HEAP_TYPE or isinstance(vars(entry).get("__new__"), types.BuiltinFunctionType):
            return False
    size = base.__basicsize__ + _POINTER_BYTES * slots
    if kind.__dictoffset__ and not base.__dictoffset__ and not kind.__flags__ & _MANAGED_DICT:
        size += _POINTER_BYTES
    if kind.__weakrefoffset__ > 0 and not base.__weakrefoffset__:
        size += _POINTER_BYTES
    return kind.__itemsize__ == base.__itemsize__ and kind.__basicsize__ <= size


def attributes_of(value: object) -> dict[str, object] | None:
    """Return the dict of an object's attributes, without running code of its class.

    Args:
        value: Any value.

    Returns:
        The dict itself; None when the class gives its objects none.
    """
    for base in type(value).__mro__:
        getter = vars(base).get("__dict__")
        if isinstance(getter, types.GetSetDescriptorType | types.MemberDescriptorType):
            return cast("dict[str, object]", getter.__get__(value, type(value)))
    return None


def write_attributes(value: object, encoder: Encoder) -> list[object]:
    """Encode the attributes of an object.

    Args:
        value: The object.
        encoder: The encoding under way.

    Raises:
        UntransferableValueError: An attribute cannot travel.
    """
    nodes: list[object] = []
    for name, attribute in (attributes_of(value) or {}).items():
        if type(name) is not str:
            raise encoder.refusal(value, f"it has an attribute whose name is {name!r}, not text")
        nodes += [encoder.node(name), encoder.node(attribute, f".{name}")]
    return nodes


def read_attributes(value: object, payload: object, decoder: Decoder) -> None:
    """Decode and set the attributes of an object, without running code of its class.

    Args:
        value: The object.
        payload: What `write_attributes` returned, after its travel.
        decoder: The decoding under way.

    Raises:
        WireError: The payload is not valid, or the object has no attributes.
    """
    nodes = items_of(payload)
    attributes = attributes_of(value)
    if attributes is None and nodes:
        raise WireError(f"the message has attributes for an object of {describe_type(type(value))}, which has none")
    for name, node in zip(nodes[::2], nodes[1::2], strict=True):
        cast("dict[str, object]", attributes)[part(decoder.value(name), str)] = decoder.value(node)


class EnumCodec:
    """Members of enumerations, by class and name; combined flags, by value."""

    tag = "enum"

    def encode(self, value: enum.Enum, encoder: Encoder) -> object:
        """Write the class and the member."""
        kind = type(value)
        name: str | None = value._name_
        if name is not None and kind._member_map_.get(name) is value:
            return [encoder.node(kind, ".__class__"), name]
        return [encoder.node(kind, ".__class__"), encoder.node(value._value_, ".value")]

    def decode(self, payload: object, decoder: Decoder) -> object:
        """Find the member."""
        kind_node, member = fields(payload, 2)
        kind = decoder.value(kind_node)
        if not isinstance(kind, enum.EnumType):
            raise WireError("the message has a member of what is no enumeration")
        if isinstance(member, str):
            return cast("type[enum.Enum]", kind)._member_map_[member]
        if not issubclass(kind, enum.Flag):
            raise WireError("the message has a combination of what are no flags")
        return kind(part(member, int))


class ExceptionCodec:
    """Exceptions: the class by name, the arguments and the attributes. Tracebacks, causes and contexts stay behind."""

    tag = "exception"

    def encode(self, value: BaseException, encoder: Encoder) -> object:
        """Write the class, the arguments and the attributes."""
        kind = type(value)
        for entry in kind.__mro__:
            if entry.__module__ == "builtins":
                break
            if not entry.__flags__ & _HEAP_TYPE or isinstance(vars(entry).get("__new__"), types.BuiltinFunctionType):
                raise encoder.refusal(value, "it holds state that is not in Python attributes")
        args = value.args
        if isinstance(value, OSError) and value.filename is not None:
            # Its arguments are without the names of the files.
            args = (*args, value.filename, None, value.filename2)
        return [encoder.node(kind, ".__class__"), encoder.node(args, ".args"), write_attributes(value, encoder)]

    def decode(self, payload: object, decoder: Decoder) -> object:
        """Make an exception without running methods of its class."""
        kind_node, args_node, attributes = fields(payload, 3)
        kind = decoder.value(kind_node)
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise WireError("the message has an exception of what is no class of exceptions")
        builtin: Any = next(entry for entry in kind.__mro__ if entry.__module__ == "builtins")
        args = part(decoder.value(args_node), tuple)
        result: object = builtin.__new__(kind, *args)
        decoder.remember(result)
        builtin.__init__(result, *args)
        read_attributes(result, attributes, decoder)
        return result


class NamespaceCodec:
    """Objects of `types.SimpleNamespace`."""

    tag = "namespace"

    def encode(self, value: types.SimpleNamespace, encoder: Encoder) -> object:
        """Write the attributes."""
        return write_attributes(value, encoder)

    def decode(self, payload: object, decoder: Decoder) -> types.SimpleNamespace:
        """Set the attributes of an object that exists before them."""
        result = types.SimpleNamespace()
        decoder.remember(result)
        read_attributes(result, payload, decoder)
        return result


class WeakReferenceCodec:
    """Weak references, such as those of PyTorch's recurrent modules to their weights.

    The object travels too; the reference is dead after the reading unless another value holds the object.
    """

    tag = "weakref"

    def encode(self, value: weakref.ReferenceType[object], encoder: Encoder) -> object:
        """Write the object."""
        held = value()
        if held is None:
            raise encoder.refusal(value, "it is a weak reference to an object that is gone")
        return encoder.node(held, "()")

    def decode(self, payload: object, decoder: Decoder) -> weakref.ReferenceType[object]:
        """Refer to the object."""
        return weakref.ref(decoder.value(payload))


class ObjectCodec:
    """Objects of importable classes: the class by name, and the state.

    The state is the attributes, the slots, and the contents of a builtin base. No method of the class runs: neither
    `__reduce__`, `__getstate__` or `__setstate__`, nor `__new__` or `__init__`.
    """

    tag = "object"

    def encode(self, value: object, encoder: Encoder) -> object:
        """Write the class, the slots, the attributes and the contents."""
        kind = type(value)
        base = content_base(kind)
        members = slot_members(kind)
        if kind is object:
            raise encoder.refusal(value, "a bare object() has nothing but its identity", "Use an enum member instead.")
        if not holds_only_python_state(kind, base, len(members)):
            raise encoder.refusal(value, "it holds state that is not in Python attributes")
        slots: list[object] = []
        for name, member in members.items():
            try:
                held = member.__get__(value, kind)
            except AttributeError:
                continue
            slots += [name, encoder.node(held, f".{name.partition('.')[2]}")]
        payload = [encoder.node(kind, ".__class__"), slots, write_attributes(value, encoder)]
        if base is not object:
            payload.append(write_contents(value, base, encoder))
        return payload

    def decode(self, payload: object, decoder: Decoder) -> object:
        """Make an object of the class and set its state."""
        kind_node, slots, attributes, *contents = fields(payload, 3, 4)
        kind = decoder.value(kind_node)
        if not isinstance(kind, type):
            raise WireError("the message has an object of what is no class")
        base = content_base(kind)
        members = slot_members(kind)
        fits = kind is not base and not issubclass(kind, enum.Enum) and (base is object) is not bool(contents)
        if not fits or not holds_only_python_state(kind, base, len(members)):
            raise WireError(f"the message has an object of {describe_type(kind)} with a state that is not the class's")
        result = empty_object(kind, base, contents, decoder)
        decoder.remember(result)
        nodes = items_of(slots)
        for name, node in zip(nodes[::2], nodes[1::2], strict=True):
            member = members.get(part(name, str))
            if member is None:
                raise WireError(f"{describe_type(kind)} has no slot {name!r} in this process")
            member.__set__(result, decoder.value(node))
        read_attributes(result, attributes, decoder)
        if contents:
            fill_object(result, base, contents[0], decoder)
        return result


def add_objects(table: CodecTable) -> None:
    """Add the codecs of this module to a table, after all others.

    Args:
        table: The table.
    """
    table.register(enum.Enum, EnumCodec())
    table.register(BaseException, ExceptionCodec())
    table.register(types.SimpleNamespace, NamespaceCodec(), subclasses=False)
    table.register(weakref.ReferenceType, WeakReferenceCodec(), subclasses=False)
    table.register_predicate(lambda _: True, ObjectCodec())
