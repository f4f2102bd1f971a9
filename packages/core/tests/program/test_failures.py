"""Errors come home with their type, their arguments and the lines of the block."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from typing import Any

import msgspec
import pytest

from nnsight._program.failures import describe_error, keep_user_frames, rebuild_error
from nnsight.errors import RequestFailedError


class OwnError(Exception):
    """An error whose constructor wants more than its arguments."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")


def _described(error: BaseException) -> dict[str, object]:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001 - SystemExit is one of the cases
        return describe_error(raised)


def test_the_type_the_arguments_and_the_notes_survive() -> None:
    error = ValueError("message", 7)
    error.add_note("a note")
    again = rebuild_error(_described(error))
    assert type(again) is ValueError
    assert again.args == ("message", 7)
    assert again.__notes__ == ["a note"]


def test_the_traceback_ends_on_the_users_line_without_carets() -> None:
    again = rebuild_error(_described(KeyError("x")))
    text = "".join(traceback.format_exception(again))
    assert "in _described" in text
    assert text.rstrip().endswith("raise error\nKeyError: 'x'")


def test_each_frame_is_at_a_real_instruction() -> None:
    # IPython's formatter searches without end for the instruction of a frame that has none.
    again = rebuild_error(_described(KeyError("x")))
    link = again.__traceback__
    assert link is not None
    while link is not None:
        assert link.tb_lasti >= 0
        link = link.tb_next


def test_ipython_formats_a_rebuilt_error() -> None:
    again = rebuild_error(_described(KeyError("x")))
    stack_data = pytest.importorskip("stack_data")
    frames = list(stack_data.FrameInfo.stack_data(again.__traceback__))
    assert len(frames) == 1


def test_an_exception_that_cannot_be_rebuilt_says_what_it_was() -> None:
    again = rebuild_error(_described(OwnError(3, detail="why")))
    assert isinstance(again, RequestFailedError)
    assert "OwnError" in str(again)
    assert "3: why" in str(again)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_exceptions_that_would_act_on_the_caller_are_told_instead(error: BaseException) -> None:
    assert isinstance(rebuild_error(_described(error)), RequestFailedError)


def test_frames_of_libraries_are_cut_where_the_user_has_any() -> None:
    import json

    try:
        json.loads("{")
    except ValueError as error:
        kept = keep_user_frames(error)
    link = kept.__traceback__
    assert link is not None
    assert link.tb_frame is sys._getframe()
    assert link.tb_next is None


def test_frames_of_a_backend_in_a_checkout_are_cut() -> None:
    spec = importlib.util.find_spec("nnsight_vllm")
    assert spec is not None
    folder = next(iter(spec.submodule_search_locations or ()))
    code = compile("def inside(value):\n    raise value", f"{folder}/session.py", "exec")
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    try:
        namespace["inside"](ValueError("x"))
    except ValueError as error:
        frames = describe_error(error)["frames"]
    assert [name for _, _, name in frames] == ["test_frames_of_a_backend_in_a_checkout_are_cut"]


@pytest.mark.parametrize("arg", [2**70, "\ud800", object(), [1]])
def test_arguments_that_cannot_travel_are_spelled(arg: object) -> None:
    data = _described(ValueError(arg))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(data))["type"] == ["builtins", "ValueError"]
    assert isinstance(rebuild_error(data), Exception)


def test_an_error_that_cannot_be_spelled_is_told_all_the_same() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert "cannot be spelled" in str(rebuild_error(_described(Silent())))
