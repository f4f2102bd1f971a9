from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from wire_helpers import CODECS, Settings, travel

from nnsight._wire import CodecTable, Decoder, Encoder, Limits, ValueCodec, decode, default_codecs, encode
from nnsight.errors import UntransferableValueError, WireError


class Location:
    def __init__(self, path: str, engine: object) -> None:
        self.path = path
        self.engine = engine


class LocationCodec:
    """Envoys by path, bound to one engine."""

    tag = "test.location"

    def __init__(self, engine: object) -> None:
        self.engine = engine

    def encode(self, value: Location, encoder: Encoder) -> object:
        if value.engine is not self.engine:
            raise encoder.refusal(value, "it belongs to another engine", "Open the trace on that engine.")
        return {"path": value.path, "extra": [None, 1, 2.5, b"x"]}

    def decode(self, payload: Any, decoder: Decoder) -> object:
        return Location(payload["path"], self.engine)


class SourceCodec:
    """Functions by source, before the codec that goes by name."""

    tag = "test.source"

    def encode(self, value: types.FunctionType, encoder: Encoder) -> object:
        return [value.__name__, encoder.node(value.__defaults__, "defaults")]

    def decode(self, payload: Any, decoder: Decoder) -> object:
        return ("function", payload[0], decoder.value(payload[1]))


def test_a_call_may_bring_codecs_bound_to_its_engine() -> None:
    here, there = object(), object()
    sender = CODECS.extended({Location: LocationCodec(here)})
    receiver = CODECS.extended(readers=[LocationCodec(there)])
    shared = Location("model.layers.0", here)
    result: Any = decode(encode([shared, shared], codecs=sender), codecs=receiver)
    assert (result[0].path, result[0].engine, result[0] is result[1]) == ("model.layers.0", there, True)
    with pytest.raises(UntransferableValueError, match=r"`h\[0\]`.*belongs to another engine. Open the trace"):
        encode([Location("x", there)], codecs=sender, name="h")


def test_extending_leaves_the_table_as_it_was() -> None:
    CODECS.extended({Location: LocationCodec(None)}, predicates=[(callable, SourceCodec())])
    assert CODECS.for_tag("test.location") is None
    with pytest.raises(UntransferableValueError):
        encode(lambda: 0, codecs=CODECS)
    message = encode(Location("x", None), codecs=CODECS.extended({Location: LocationCodec(None)}))
    with pytest.raises(WireError, match=r"unknown kind 'test\.location'"):
        decode(message, codecs=CODECS)


def test_a_predicate_comes_before_the_codecs_that_go_by_name() -> None:
    codecs = CODECS.extended(
        predicates=[
            (lambda value: isinstance(value, types.FunctionType) and value.__name__ == "<lambda>", SourceCodec())
        ]
    )
    assert travel(lambda x=[1]: 0, codecs=codecs) == ("function", "<lambda>", ([1],))
    assert travel(len, codecs=codecs) is len


def test_a_path_goes_through_the_codec_of_a_plugin() -> None:
    codecs = CODECS.extended(predicates=[(callable, SourceCodec())])
    with pytest.raises(UntransferableValueError, match=r"`f.defaults\[0\]`"):
        encode(lambda x=torch.Generator(): 0, codecs=codecs, name="f")  # noqa: B008


class Base:
    pass


class Child(Base):
    pass


class Named:
    def __init__(self, tag: str) -> None:
        self.tag = tag

    def encode(self, value: object, encoder: Encoder) -> object:
        return None

    def decode(self, payload: object, decoder: Decoder) -> object:
        return self.tag


def test_the_exact_type_comes_before_its_bases_and_they_before_predicates() -> None:
    codecs = CODECS.extended({Base: Named("base")}, predicates=[(lambda _: True, Named("any"))])
    assert travel([Base(), Child(), Settings(1)], codecs=codecs) == ["base", "base", "any"]
    codecs = codecs.extended({Child: Named("child")})
    assert travel([Base(), Child()], codecs=codecs) == ["base", "child"]
    codecs.register(Base, Named("exact"), subclasses=False)
    assert travel([Base(), Child()], codecs=codecs) == ["exact", "child"]


def test_a_later_extension_replaces_a_tag() -> None:
    codecs = CODECS.extended({Base: LocationCodec(1)}).extended({Base: LocationCodec(2)})
    found: Any = codecs.for_tag("test.location")
    assert found.engine == 2


def test_two_codecs_with_one_tag_are_refused() -> None:
    table = CodecTable()
    table.register(Base, Named("a"))
    with pytest.raises(ValueError, match="another codec has the tag 'a'"):
        table.register(Child, Named("a"))
    with pytest.raises(ValueError, match="reserved"):
        table.register(Child, Named("ref"))
    with pytest.raises(ValueError, match="another codec has the tag 'b'"):
        table.extended({Base: Named("b"), Child: Named("b")})


def test_a_table_without_codecs_knows_scalars_only() -> None:
    table = CodecTable()
    assert travel(5, codecs=table) == 5
    with pytest.raises(UntransferableValueError, match="no codec is registered"):
        encode([1], codecs=table)


def test_a_codec_that_fails_while_reading_is_an_error_of_the_message() -> None:
    message = encode(Location("x", None), codecs=CODECS.extended({Location: LocationCodec(None)}))
    broken = CODECS.extended(readers=[LocationCodec(None)])
    with pytest.raises(WireError, match="KeyError"):
        decode(message.replace(b"path", b"htap"), codecs=broken, limits=Limits())


def test_codecs_satisfy_the_protocol() -> None:
    codec: ValueCodec = LocationCodec(None)
    table = default_codecs()
    table.register(Location, codec)
    assert table.for_value(Location("x", None)) is codec
