from __future__ import annotations

import collections
import datetime
import decimal
import functools
import math
import random
import sys
import threading
import time
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from wire_helpers import (
    CODECS,
    Access,
    Adapter,
    Color,
    Frozen,
    OurError,
    Point,
    Probe,
    Settings,
    Slotted,
    Stack,
    Tags,
    frame,
    message,
    nested,
    safetensors,
)

from nnsight._wire import Limits, decode, encode
from nnsight._wire import header as header_checks
from nnsight._wire.buffers import ENTRY_KINDS
from nnsight._wire.message import VERSION, unpack
from nnsight.errors import NNsightError, WireError

ALLOWED = frozenset(
    {"wire_helpers", "math", "builtins", "torch.nn.modules.linear", "torch", "collections", "functools"}
)
TRUSTING_SOME = Limits(allow_objects=True, allowed_module=ALLOWED.__contains__)


def read(data: bytes, limits: Limits = TRUSTING_SOME) -> Any:
    return decode(data, codecs=CODECS, limits=limits)


def sample() -> object:
    """Build a value with every kind of node in it."""
    shared: list[Any] = [1, torch.ones(2, 3), np.arange(3)]
    shared.append(shared)
    return {
        "shared": [shared, shared],
        "long": b"long" * 20_000,
        "scalars": [None, True, 1, 2**80, -1.5, math.nan, "text", "\ud800", b"bytes", 1j, ..., slice(1, None)],
        "containers": [(1, (2,)), {1, "a"}, frozenset({(1, 2)}), collections.deque([1], maxlen=3), bytearray(b"x")],
        "mappings": [collections.OrderedDict(a=1), collections.Counter("aab"), collections.defaultdict(list, a=[1])],
        "small": [range(3), decimal.Decimal("1.5"), datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)],
        "times": [datetime.timedelta(1), datetime.date(2024, 1, 1), datetime.time(1)],
        "torch": [torch.float32, torch.device("cpu"), torch.Size([1]), torch.strided, torch.topk(torch.ones(2), 1)],
        "tensors": [torch.zeros(3, dtype=torch.bfloat16), torch.ones(1, requires_grad=True), torch.tensor(1j)],
        "arrays": [np.float32(1), np.array(["ab"]), np.dtype("i4"), np.zeros((0, 2))],
        "names": [math, math.sqrt, int, Probe.forward, functools.partial(int, base=2)],
        "objects": [
            Settings(1, [2]),
            Adapter("a"),
            Frozen("a"),
            Slotted(1, 2),
            Point(1),
            Tags(a=1),
            Stack([1]),
            Color.RED,
        ],
        "more": [Access.READ | Access.WRITE, OurError("x", 1), torch.nn.Linear(2, 1), Probe().forward],
        ("key", 1): {Frozen("k"): 1, (1, (2, 3)): 2},
    }


def sample_message() -> bytes:
    return encode(sample(), codecs=CODECS)


def test_the_sample_that_is_damaged_below_can_be_read() -> None:
    assert len(read(sample_message())) == len(sample())  # type: ignore[arg-type]


def test_every_truncation_is_an_error() -> None:
    whole = encode([1, "text", torch.ones(3), (2.5, {"a": b"x"})], codecs=CODECS)
    read(whole)
    for length in range(len(whole)):
        with pytest.raises(WireError):
            read(whole[:length])


def test_bytes_after_the_message_are_an_error() -> None:
    for value in ([1, 2], torch.ones(2)):
        with pytest.raises(WireError):
            read(encode(value, codecs=CODECS) + b"\0" * 8)


@pytest.mark.parametrize("data", [b"", b"NNSW", b"\x80\x04K\x01.", b"PK\x03\x04" + b"\0" * 40, b"\0" * 64])
def test_bytes_of_something_else_are_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        read(data)


def test_another_version_says_both_versions() -> None:
    with pytest.raises(WireError, match=f"version 9; this process reads version {VERSION}"):
        read(frame(b"\xc0", version=9))


@pytest.mark.parametrize(
    "header",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdc\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xde\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xd9\xff",
        b"\xdd\x00\x00\x01\x00" * 200,
        b"\xc7\x01\x00\x00",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xc1",
        b"\x92\xc0",
        b"\xc0\xc0",
        b"\xcb\x00",
        b"\xa5ab",
        b"\xa2\xff\xff",
        b"\x81\x90\x01",
        b"",
    ],
    ids=bytes.hex,
)
@pytest.mark.parametrize("careful", [False, True])
def test_headers_that_declare_more_than_they_hold_are_errors(header: bytes, careful: bool) -> None:
    # The limit on items, when it is below the header's bytes, has each item checked.
    limits = Limits(max_nodes=1) if careful else Limits()
    with pytest.raises(WireError):
        read(frame(header), limits)


@pytest.mark.parametrize("careful", [False, True])
def test_nested_headers_take_little_memory_and_time(careful: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if careful:
        monkeypatch.setattr(sys, "getrecursionlimit", lambda: 10**6)
    size = 1 << 20
    bombs = [
        (b"\xdd" + (size // 2).to_bytes(4, "big")) * 300 + b"\xc0" * size,
        b"\x91" * size,
        b"\xdc\x00\x01" * size,
        b"\x81\xa0" * size,
    ]
    started = time.monotonic()
    for bomb in bombs:
        with pytest.raises(WireError):
            read(frame(bomb))
    assert time.monotonic() - started < 10


def test_nesting_is_counted_before_decoding_where_python_does_not_bound_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_checks, "_LIMIT_COUNTS_C", False)
    with pytest.raises(WireError, match="nested deeper than 480 levels"):
        read(frame(b"\x91" * 1000 + b"\xc0"))
    wide = [[index] for index in range(1000)]
    assert read(encode(wide, codecs=CODECS)) == wide


def test_nodes_nested_too_deeply_are_errors() -> None:
    assert read(message(nested(100))) is not None
    for levels in (121, 300, 3000):
        with pytest.raises((WireError, RecursionError)) as caught:
            read(message_of_depth(levels))
        assert caught.type is WireError


def message_of_depth(levels: int) -> bytes:
    return frame(b"\x92" + b"\x92\xa4list\x91" * levels + b"\xc0" + b"\x90")


def test_definitions_nested_through_references_are_errors() -> None:
    chain = [["list", [["ref", index + 1]]] for index in range(500)]
    with pytest.raises(WireError, match="nested deeper"):
        read(message(["ref", 0], chain))


def test_the_limits_on_size_and_steps_hold() -> None:
    data = encode([[index] for index in range(1000)], codecs=CODECS)
    with pytest.raises(WireError, match="the limit is 100"):
        read(data, Limits(max_bytes=100))
    with pytest.raises(WireError, match="the limit is 500"):
        read(data, Limits(max_nodes=500))
    again: list[Any] = [["tuple", [*[["ref", index] for index in range(1, 40)], ["list", [0] * 1000]]]]
    again += [["list", [["ref", 0]]] for _ in range(1, 40)]
    assert read(message(["ref", 0], again), Limits())
    with pytest.raises(WireError, match="more than 3000 steps"):
        read(message(["ref", 0], again), Limits(max_nodes=3000))


def test_references_do_not_multiply_what_is_made() -> None:
    definitions: list[Any] = [["list", [["ref", index + 1]] * 50] for index in range(40)]
    definitions.append(["list", []])
    result = read(message(["ref", 0], definitions))
    assert result[0] is result[1]


def test_keys_made_of_references_are_errors_because_hashing_them_would_not_end() -> None:
    for kind in ("tuple", "frozenset"):
        definitions: list[Any] = [[kind, [["ref", index + 1]] * 2] for index in range(60)]
        definitions.append([kind, [1]])
        for root in (["dict", [["ref", 0], 1]], ["set", [["ref", 0]]], ["set", [["tuple", [["ref", 0]]]]]):
            with pytest.raises(WireError, match="a key of the message refers to"):
                read(message(root, definitions))


def test_keys_with_one_hash_are_errors_because_storing_them_would_take_long() -> None:
    prime = 2**61 - 1
    keys = [["int", [(prime * index).to_bytes(16, "little")]] for index in range(1, 20_000)]
    for root in (["set", keys], ["dict", [node for key in keys for node in (key, None)]]):
        with pytest.raises(WireError, match="too many keys with one hash"):
            read(message(root))


def test_an_immutable_value_that_holds_only_itself_is_an_error() -> None:
    for kind in ("tuple", "frozenset"):
        with pytest.raises(WireError):
            read(message(["ref", 0], [[kind, [["ref", 0]]]]))
    with pytest.raises(WireError):
        read(message(["ref", 0], [["ref", 0]]))


BAD_NODES: list[object] = [
    {},
    {"a": 1},
    [],
    ["list"],
    ["list", 1],
    ["list", [], 1],
    ["list", None],
    ["unknown", 1],
    [1, 2],
    [["list"], []],
    ["ref", "a"],
    ["ref", 5],
    ["ref", -1],
    ["ref", True],
    ["ref", 2**64 - 1],
    ["dict", [1]],
    ["dict", [["list", []], 1]],
    ["set", [["dict", []]]],
    ["set", 5],
    ["int", ["a"]],
    ["int", []],
    ["int", [b"a", b"b"]],
    ["str", [b"\xff"]],
    ["str", ["a"]],
    ["complex", [1, 2]],
    ["range", [1, 2, 0]],
    ["range", [["int", [b"\xff" * 5000 + b"\x01"]], 1, 1]],
    ["slice", [1]],
    ["deque", [-1, []]],
    ["deque", ["a", []]],
    ["defaultdict", [5, []]],
    ["bytearray", [1 << 40]],
    ["bytes", [0, 1]],
    ["bytes", [0, -1]],
    ["bytes", [-1, 0]],
    ["bytes", b"x"],
    ["decimal", ["x"]],
    ["uuid", [b"x"]],
    ["date", [0, 0, 0]],
    ["date", [2**63, 1, 1]],
    ["timedelta", [10**18, 0, 0]],
    ["timezone", [["timedelta", [400, 0, 0]], None]],
    ["datetime", [1, 1, 1, 0, 0, 0, 0, 0, 5]],
    ["datetime", [1]],
    ["time", [25, 0, 0, 0, 0, None]],
    ["path", ["Path", "x"]],
    ["path", ["PosixPath", "a\0b", "c"]],
    ["torch.dtype", ["float33"]],
    ["torch.dtype", [["list", []]]],
    ["torch.dtype", ["ones"]],
    ["torch.device", ["nowhere"]],
    ["torch.device", [1]],
    ["torch.Size", ["a"]],
    ["torch.return_type", ["topk", 1]],
    ["torch.return_type", ["os", 1]],
    ["torch.return_type", []],
    ["partial", [5, ["tuple", []], ["dict", []], None]],
    ["partial", [["function", ["math", "sqrt"]], ["list", []], ["dict", []], None]],
    ["tensor", ["float32", 0, [1]]],
    ["numpy.array", ["O", [1], [0, 0]]],
    ["numpy.array", ["|O8", [1], [0, 8]]],
    ["numpy.array", ["<f8", [1], [0, 8]]],
    ["numpy.array", ["<f8", [-1], [0, 0]]],
    ["numpy.array", ["<f8", [2**40], [0, 0]]],
    ["numpy.array", ["<f8", [1] * 65, [0, 0]]],
    ["numpy.array", ["|V0", [2**40], [0, 0]]],
    ["numpy.array", ["<U999999999", [2**40], [0, 0]]],
    ["numpy.scalar", ["<f8", b"abc"]],
    ["numpy.scalar", ["f8,f8", b"abc"]],
    ["numpy.dtype", ["<f8"]],
    ["enum", [["class", ["builtins", "int"]], "x"]],
    ["enum", [["class", ["wire_helpers", "Color"]], "GREEN"]],
    ["enum", [["class", ["wire_helpers", "Color"]], ["list", []]]],
    ["enum", [["class", ["wire_helpers", "Access"]], 1 << 40]],
    ["enum", [5, 5]],
    ["module", "os"],
    ["module", "nowhere.at.all"],
    ["module", "__main__"],
    ["module", ""],
    ["module", "math:sqrt"],
    ["module", 5],
    ["class", ["os", "PathLike"]],
    ["class", ["math", "sqrt"]],
    ["class", ["builtins", "nothing"]],
    ["class", ["builtins", ""]],
    ["class", ["builtins", "int.real"]],
    ["class", ["wire_helpers", "torch.nn.Linear"]],
    ["class", ["wire_helpers", "enum"]],
    ["class", ["wire_helpers", "collections.OrderedDict"]],
    ["class", [1, 2]],
    ["function", ["math", "pi"]],
    ["function", ["math", "sqrt", "x"]],
    ["function", ["builtins", "int.__add__.__class__.__base__"]],
    ["method", [5, "nothing"]],
    ["method", [["class", ["wire_helpers", "Probe"]], "forward"]],
    ["method", [["class", ["wire_helpers", "Probe"]], "double"]],
    ["method", [["object", [["class", ["wire_helpers", "Slotted"]], [], []]], "secret"]],
    ["method", ["abc", "__class__"]],
    ["object", [["class", ["builtins", "int"]], [], [], 5]],
    ["object", [["class", ["builtins", "object"]], [], []]],
    ["object", [["class", ["builtins", "type"]], [], []]],
    ["object", [["class", ["builtins", "range"]], [], []]],
    ["object", [["class", ["builtins", "memoryview"]], [], []]],
    ["object", [["class", ["functools", "partial"]], [], []]],
    ["object", [["class", ["collections", "defaultdict"]], [], [], []]],
    ["object", [["class", ["torch", "Tensor"]], [], []]],
    ["object", [["class", ["torch", "Generator"]], [], []]],
    ["object", [["function", ["math", "sqrt"]], [], []]],
    ["object", [5, [], []]],
    ["object", [["class", ["wire_helpers", "Settings"]], [], [1, 2]]],
    ["object", [["class", ["wire_helpers", "Settings"]], [], ["a"]]],
    ["object", [["class", ["wire_helpers", "Settings"]], [], [], []]],
    ["object", [["class", ["wire_helpers", "Settings"]], ["0.a", 1], []]],
    ["object", [["class", ["wire_helpers", "Slotted"]], [], ["a", 1]]],
    ["object", [["class", ["wire_helpers", "Slotted"]], ["1.nothing", 1], []]],
    ["object", [["class", ["wire_helpers", "Tags"]], [], []]],
    ["object", [["class", ["wire_helpers", "Steps"]], [], [], "a"]],
    ["object", [["class", ["wire_helpers", "Color"]], [], []]],
    ["exception", [["class", ["builtins", "int"]], ["tuple", []], []]],
    ["exception", [["class", ["builtins", "UnicodeDecodeError"]], ["tuple", [1]], []]],
    ["exception", [["class", ["builtins", "ValueError"]], 5, []]],
    ["refused", None],
]


@pytest.mark.parametrize("node", BAD_NODES, ids=lambda node: repr(node)[:60])
def test_nodes_that_no_writer_makes_are_errors(node: object) -> None:
    for root in (node, ["list", [node]], ["ref", 0]):
        with pytest.raises(WireError):
            read(message(root, [node]))
    with pytest.raises(WireError):
        read(message(["set", [node]]))


@pytest.mark.parametrize("header", [5, None, [1], [1, 2, 3], [1, 2], {"root": 1}, "x"], ids=repr)
def test_headers_of_another_shape_are_errors(header: object) -> None:
    with pytest.raises(WireError):
        read(frame(msgspec.msgpack.encode(header)))


GOOD = safetensors({"float32": ("F32", [2], [0, 8])}, b"\0" * 8)


def test_places_inside_the_tensors_can_be_read() -> None:
    assert read(message(["tensor", ["float32", 0, [2]]], (), GOOD)).tolist() == [0, 0]


@pytest.mark.parametrize(
    "place",
    [
        ["float32", 0, [3]],
        ["float32", 1, [2]],
        ["float32", -1, [1]],
        ["float32", 2**62, [1]],
        ["float32", 0, [-1]],
        ["float32", 0, [-1, -1]],
        ["float32", 0, [2**62, 4]],
        ["float32", 0, [0, 2**63]],
        ["float32", 0, [1.0]],
        ["float32", 0, [True]],
        ["float32", 0, 1],
        ["float32", 0, [1] * 65],
        ["float32", 0.5, [1]],
        ["float32", None, [1]],
        ["float64", 0, [1]],
        ["bytes", 0, [1]],
        ["os", 0, [1]],
        [None, 0, [1]],
        [[], 0, [1]],
        ["float32", 0],
        ["float32", 0, [1], 9],
        ["float32", 0, [1], "x"],
        ["float32", 0, [1], -1],
        ["float32", 0, [1], 0, "cpu", 1],
    ],
    ids=repr,
)
def test_places_outside_the_tensors_are_errors(place: object) -> None:
    with pytest.raises(WireError):
        read(message(["tensor", place], (), GOOD))


def test_places_that_overlap_do_not_become_tensors_that_share_memory() -> None:
    payload = safetensors({"float32": ("F32", [6], [0, 24])}, b"\0" * 24)
    nodes = [["tensor", ["float32", offset, [2]]] for offset in (1, 0, 2)]
    results = read(message(["list", nodes], (), payload))
    results[1].fill_(5)
    results[2].fill_(7)
    assert [result.tolist() for result in results] == [[0, 0], [5, 5], [7, 7]]


def test_one_place_cannot_become_many_tensors() -> None:
    node = ["tensor", ["float32", 0, [2]]]
    with pytest.raises(WireError, match="on those of another"):
        read(message(["list", [node, node]], (), GOOD))
    result = read(message(["list", [["ref", 0], ["ref", 0]]], [node], GOOD))
    assert result[0] is result[1]


@pytest.mark.parametrize(
    "payload",
    [
        b"\0",
        b"\0" * 8,
        b"\xff" * 8,
        (2**40).to_bytes(8, "little") + b"{}",
        (10).to_bytes(8, "little") + b"{}",
        safetensors({}, b"x"),
        safetensors({"float32": ("F32", [2], [0, 16])}, b"\0" * 8),
        safetensors({"float32": ("F32", [2], [8, 0])}, b"\0" * 8),
        safetensors({"float32": ("F32", [2], [-8, 0])}, b"\0" * 8),
        safetensors({"float32": ("F32", [2], [4, 8])}, b"\0" * 8),
        safetensors({"float32": ("F32", [2], [0, 7])}, b"\0" * 7),
        safetensors({"float32": ("I32", [2], [0, 8])}, b"\0" * 8),
        safetensors({"float32": ("F32", [2], [0, 8]), "int8": ("I8", [2], [0, 8])}, b"\0" * 8),
        safetensors({"float32": ("F32", [2], [0, 2**70])}, b"\0" * 8),
        safetensors({"other": ("F32", [2], [0, 8])}, b"\0" * 8),
        safetensors({"object": ("U8", [8], [0, 8])}, b"\0" * 8),
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"null",
        (9).to_bytes(8, "little") + b'{"a":[1]}',
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
    ],
    ids=lambda payload: repr(payload[:40]),
)
def test_tensors_that_are_no_safetensors_are_errors(payload: bytes) -> None:
    with pytest.raises(WireError):
        read(message(None, (), payload))


def test_nothing_is_imported_without_permission() -> None:
    for tag, names in (("module", "this"), ("class", ["this", "x"]), ("function", ["this", "x"])):
        for limits in (Limits(), TRUSTING_SOME):
            with pytest.raises(WireError, match="may not import"):
                read(message([tag, names]), limits)
    assert "this" not in sys.modules


def test_a_module_that_leaves_the_process_while_it_is_imported_is_an_error(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "leaves_at_once.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WireError, match="SystemExit"):
        read(message(["module", "leaves_at_once"]), Limits(allow_objects=True))


def check_damaged(data: bytes, limits: Limits) -> bool:
    try:
        read(data, limits)
    except NNsightError:
        return True
    return False


@pytest.mark.parametrize("limits", [Limits(), TRUSTING_SOME], ids=["data only", "trusting"])
@pytest.mark.filterwarnings("ignore")
def test_random_damage_to_bytes_gives_a_value_or_an_error_of_the_message(limits: Limits) -> None:
    chance = random.Random(1)
    whole = sample_message()
    errors = 0
    for _ in range(4000):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 1, 2, 8])):
            place = chance.randrange(len(data))
            action = chance.random()
            if action < 0.5:
                data[place] = chance.choice([0, 0x7F, 0x80, 0x90, 0xC0, 0xDC, 0xDD, 0xDF, 0xFF, chance.randrange(256)])
            elif action < 0.7:
                del data[place : place + chance.randrange(1, 9)]
            elif action < 0.9:
                data[place:place] = chance.randbytes(chance.randrange(1, 9))
            else:
                start = chance.randrange(len(data))
                data[place : place + 16] = data[start : start + 16]
        errors += check_damaged(bytes(data), limits)
    assert errors > 1000


def parts_of(tree: Any) -> list[tuple[list[Any], int]]:
    """List every place in a tree of lists, as a list with an index."""
    found = []
    pending = [tree]
    while pending:
        entry = pending.pop()
        for index, item in enumerate(entry):
            found.append((entry, index))
            if isinstance(item, list):
                pending.append(item)
    return found


@pytest.mark.parametrize("limits", [Limits(), TRUSTING_SOME], ids=["data only", "trusting"])
@pytest.mark.filterwarnings("ignore")
def test_random_damage_to_the_tree_gives_a_value_or_an_error_of_the_message(limits: Limits) -> None:
    chance = random.Random(2)
    whole = sample_message()
    header, payload = unpack(whole, Limits())
    encoded = msgspec.msgpack.encode(header)
    tags = [*sorted(CODECS._tags), "ref"]
    atoms: list[Any] = [
        None,
        True,
        0,
        1,
        -1,
        2**64 - 1,
        -(2**63),
        1.5,
        math.nan,
        "",
        "x",
        b"",
        b"x" * 20,
        [],
        {},
        {"a": 1},
    ]
    atoms += [["ref", 0], ["ref", 1], ["ref", 2], *tags, *ENTRY_KINDS, *ALLOWED]
    errors = 0
    for _ in range(3000):
        tree: Any = msgspec.msgpack.decode(encoded)
        for _ in range(chance.choice([1, 1, 2, 5])):
            places = parts_of(tree)
            entry, index = chance.choice(places)
            action = chance.random()
            if action < 0.5:
                entry[index] = chance.choice(atoms)
            elif action < 0.7:
                other, other_index = chance.choice(places)
                entry[index] = msgspec.msgpack.decode(msgspec.msgpack.encode(other[other_index]))
            elif action < 0.85:
                del entry[index]
            else:
                entry.insert(index, chance.choice(atoms))
        errors += check_damaged(frame(msgspec.msgpack.encode(tree), bytes(payload)), limits)
    assert errors > 1000


def test_reading_in_a_small_thread_ends_in_errors_not_in_crashes() -> None:
    results: list[object] = []

    def run() -> None:
        for data in (message_of_depth(5000), frame(b"\x91" * 100_000), message(["ref", 0], [["tuple", [["ref", 0]]]])):
            try:
                read(data)
            except WireError:
                results.append(True)

    threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(0)
    assert results == [True] * 3
