"""Checks of a msgpack header before it is decoded."""

from __future__ import annotations

import re
import sys

from nnsight.errors import WireError

# Beyond this many nested calls, decoding deeply nested bytes could overflow the stack of C.
_SAFE_RECURSION = 3000
# From 3.12 on, nested calls of C are counted apart, up to ten thousand: more than the stack of a small thread holds.
_LIMIT_COUNTS_C = sys.version_info < (3, 12)

_SCALAR, _TEXT, _ARRAY, _MAP, _REFUSED = range(5)


def _token_table() -> list[tuple[int, int, int]]:
    """List, by first byte: what it begins, the bytes of its length field, and the fixed length or count."""
    table = [(_SCALAR, 0, 0)] * 256
    table[0x80:0x90] = [(_MAP, 0, count) for count in range(16)]
    table[0x90:0xA0] = [(_ARRAY, 0, count) for count in range(16)]
    table[0xA0:0xC0] = [(_TEXT, 0, length) for length in range(32)]
    table[0xC1] = (_REFUSED, 0, 0)
    table[0xC4:0xC7] = [(_SCALAR, width, 0) for width in (1, 2, 4)]
    table[0xC7:0xCA] = [(_REFUSED, 0, 0)] * 3
    table[0xCA:0xD4] = [(_SCALAR, 0, length) for length in (4, 8, 1, 2, 4, 8, 1, 2, 4, 8)]
    table[0xD4:0xD9] = [(_REFUSED, 0, 0)] * 5
    table[0xD9:0xDC] = [(_TEXT, width, 0) for width in (1, 2, 4)]
    table[0xDC:0xDE] = [(_ARRAY, width, 0) for width in (2, 4)]
    table[0xDE:0xE0] = [(_MAP, width, 0) for width in (2, 4)]
    return table


_TOKENS = _token_table()
_BEGINNING_NOTHING = bytes(byte for byte, (kind, _, _) in enumerate(_TOKENS) if kind not in {_ARRAY, _MAP})


def _run_pattern() -> re.Pattern[bytes]:
    """Match a run of whole items whose first byte says how long they are."""
    texts = b"|".join(b"[%s].{%d}" % (re.escape(bytes([0xA0 + length])), length) for length in range(1, 32))
    numbers = rb"[\xcc\xd0].|[\xcd\xd1]..|[\xca\xce\xd2].{4}|[\xcb\xcf\xd3].{8}"
    return re.compile(rb"(?>[\x00-\xa0\xc0\xc2\xc3\xe0-\xff]++|" + numbers + b"|" + texts + b")*+", re.DOTALL)


_RUN = _run_pattern()


def check_header(data: bytes, *, max_depth: int, max_items: int) -> None:
    """Check that decoding a msgpack value takes memory and time in proportion to its bytes, and few nested calls.

    Args:
        data: One msgpack value.
        max_depth: The deepest nesting of arrays and maps, where Python does not bound it.
        max_items: The most items in all.

    Raises:
        WireError: The value is truncated, too deep, too large, or has an item of another kind than those used here.
    """
    if len(data) > max_items or not (_python_bounds_depth() or _is_flat(data, max_depth)):
        _check_each_item(data, max_depth, max_items)
    else:
        _check_long_items(data)


def _python_bounds_depth() -> bool:
    return _LIMIT_COUNTS_C and sys.getrecursionlimit() <= _SAFE_RECURSION


def _is_flat(data: bytes, max_depth: int) -> bool:
    """Tell whether so few bytes could begin an array or a map that nesting cannot be deep."""
    return len(data.translate(None, _BEGINNING_NOTHING)) <= max_depth


def _check_long_items(data: bytes) -> None:
    """Check the items with a length field; the others take fewer than twenty bytes for each of theirs."""
    size = len(data)
    position = declared = 0
    while True:
        position = _RUN.match(data, position).end()  # type: ignore[union-attr]
        if position >= size:
            return
        kind, width, _ = _TOKENS[data[position]]
        if not width:
            raise WireError("the message's header is truncated, or has an item of an unknown kind")
        length = int.from_bytes(data[position + 1 : position + 1 + width], "big")
        position += 1 + width
        if kind <= _TEXT:
            position += length
        else:
            declared += length * 2 if kind == _MAP else length
        if position > size or declared > size:
            raise WireError(f"the message's header declares more than its {size} bytes hold")


def _check_each_item(data: bytes, max_depth: int, max_items: int) -> None:
    """Check the count and the nesting of all items, one by one."""
    size = len(data)
    bound = min(size, max_items)
    tokens = _TOKENS
    position = 0
    declared = 1
    remaining = 1
    in_map = False
    outer: list[tuple[int, bool]] = []
    while True:
        while not remaining:
            if not outer:
                if position != size:
                    raise WireError("the message's header is truncated or followed by other bytes")
                return
            remaining, in_map = outer.pop()
        if position >= size:
            raise WireError("the message's header is truncated")
        kind, width, length = tokens[data[position]]
        position += 1
        remaining -= 1
        if width:
            length = int.from_bytes(data[position : position + width], "big")
            position += width
        if in_map and remaining & 1 and kind != _TEXT:
            raise WireError("a map of the message has a key that is not text")
        if kind <= _TEXT:
            position += length
            continue
        if kind == _REFUSED:
            raise WireError("the message's header has an item of an unknown kind")
        outer.append((remaining, in_map))
        in_map = kind == _MAP
        remaining = length * 2 if in_map else length
        declared += remaining
        if declared > bound:
            raise WireError(
                f"the message declares {declared} items or more; it has {size} bytes, and the limit is {max_items}"
            )
        if len(outer) > max_depth:
            raise WireError(f"the message is nested deeper than {max_depth} levels")
