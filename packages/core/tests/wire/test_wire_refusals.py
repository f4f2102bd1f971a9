from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import io
import queue
import re
import socket
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from wire_helpers import CODECS, Probe, Settings

from nnsight._wire import encode
from nnsight.errors import UntransferableValueError

if TYPE_CHECKING:
    from collections.abc import Iterator


def refusal(value: object, name: str = "value") -> str:
    with pytest.raises(UntransferableValueError) as caught:
        encode(value, codecs=CODECS, name=name)
    return str(caught.value)


def test_a_refusal_gives_path_type_reason_and_the_ways_out() -> None:
    probe = Probe()
    probe.hooks.append(threading.Lock())
    message = refusal({"probe": probe}, name="")
    assert message.startswith("`probe.hooks[0]`, of type `_thread.lock`, cannot travel between processes: ")
    assert "it is a lock" in message
    assert "Make it inside the block" in message


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([0, [io.StringIO()]], "data[1][0]"),
        ({"a": {"b": io.StringIO()}}, "data['a']['b']"),
        ({("x", 1): io.StringIO()}, "data[<tuple>]"),
        ({3: (io.StringIO(),)}, "data[3][0]"),
        ({io.StringIO(): 1}, "data.keys()"),
        (Settings(1, [io.StringIO()]), "data.parts[0]"),
        ({"k" * 100: io.StringIO()}, "data['" + "k" * 59 + "…]"),
        ({io.StringIO()}, "data{…}"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_path_reads_as_python_would_reach_the_value(value: object, path: str) -> None:
    assert f"`{path}`" in refusal(value, name="data")


def test_a_value_without_a_name_is_called_value() -> None:
    assert "`value`" in refusal(io.StringIO(), name="")


def generator() -> Iterator[int]:
    yield 1


async def coroutine() -> None: ...


def frame() -> Any:
    return sys._getframe()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: io.BytesIO(), "open file"),
        (lambda: threading.RLock(), "lock"),
        (lambda: threading.Event(), "lock"),
        (lambda: threading.Thread(), "thread"),
        (lambda: threading.local(), "one thread"),
        (lambda: contextvars.ContextVar("x"), "one thread or task"),
        (lambda: queue.Queue(), "queue"),
        (lambda: concurrent.futures.Future(), "result that is not there yet"),
        (generator, "generator"),
        (lambda: iter([1]), "iterator"),
        (lambda: map(str, [1]), "iterator"),
        (lambda: enumerate([1]), "iterator"),
        (frame, "running code"),
        (lambda: generator.__code__, "running code"),
        (lambda: weakref.proxy(Probe), "weak proxy"),
        (lambda: weakref.ref(Probe()), "an object that is gone"),
        (lambda: memoryview(b"x"), "view of memory"),
        (lambda: torch.Generator(), "random number generator"),
        (lambda: torch.ones(1).untyped_storage(), "memory of a tensor"),
        (lambda: re.compile("x"), "state that is not in Python attributes"),
        (lambda: object(), "bare object"),
        (lambda: NotImplemented, "state that is not in Python attributes|does not give"),
        (lambda: {}.keys(), "state that is not in Python attributes"),
        (lambda: subprocess.Popen([sys.executable, "-c", ""]), "process"),
    ],
)
def test_values_of_this_process_are_refused_by_name(make: Any, reason: str) -> None:
    value = make()
    try:
        assert re.search(reason, refusal([value]))
    finally:
        if isinstance(value, subprocess.Popen):
            value.wait()


def test_sockets_files_and_coroutines_are_refused_by_name(tmp_path: Any) -> None:
    with socket.socket() as connection:
        assert "it is a socket" in refusal(connection)
    with (tmp_path / "file").open("w") as file:
        assert "open it inside the block" in refusal(file)
    running = coroutine()
    assert "Await it first" in refusal(running)
    running.close()
    loop = asyncio.new_event_loop()
    assert "runs other work" in refusal(loop)
    assert "not there yet" in refusal(loop.create_future())
    loop.close()


class HoldsCState(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pattern = re.compile("x")


def test_a_value_deep_inside_an_object_is_named() -> None:
    assert "`sae.pattern`, of type `re.Pattern`" in refusal(HoldsCState(), name="sae")


def test_attributes_whose_names_are_not_text_are_refused() -> None:
    value = Settings(1)
    vars(value)[3] = 1  # type: ignore[index]
    assert "name is 3" in refusal(value)


def test_a_value_nested_too_deeply_is_refused() -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    assert "nested deeper" in refusal(value)


def test_nesting_up_to_the_bound_travels() -> None:
    from wire_helpers import travel

    value: Any = Settings(1)
    for _ in range(48):
        value = {"x": [value]}
    result = travel(value)
    for _ in range(48):
        result = result["x"][0]
    assert result == Settings(1)


def test_a_refusal_does_not_spoil_the_next_encoding() -> None:
    codecs = CODECS.extended()
    refusal([io.StringIO()])
    assert encode([1], codecs=codecs) == encode([1], codecs=CODECS)
