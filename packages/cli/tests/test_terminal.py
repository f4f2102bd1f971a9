"""What the user sees while an engine runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nnsight.errors import InvalidRequestError
from nnsight_cli.terminal import print_error, quiet_engine


def test_what_processes_print_is_kept_from_the_user(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_engine() as terminal:
        os.write(1, b"noise of a library\n")
        subprocess.run([sys.executable, "-c", "import sys; print('noise', file=sys.stderr)"], check=True)
        terminal.output.print("the answer")
    os.write(1, b"afterwards\n")
    out, err = capfd.readouterr()
    assert out == "the answer\nafterwards\n"
    assert err == ""


def test_it_goes_to_standard_error_when_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_engine(verbose=True, for_programs=True) as terminal:
        os.write(1, b"what the engine says\n")
        terminal.output.print("the answer")
    out, err = capfd.readouterr()
    assert out == "the answer\n"
    assert err == "what the engine says\n"


def test_progress_is_kept_apart_from_output_for_programs(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_engine(for_programs=True) as terminal, terminal.step("working", "worked"):
        pass
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("✓ worked")


def test_an_error_brings_the_end_of_what_was_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError) as caught, quiet_engine() as terminal, terminal.step("starting", "started"):
        os.write(2, b"the root cause\n")
        raise RuntimeError("the engine did not start")
    print_error(caught.value)
    err = capfd.readouterr().err
    assert err.index("the engine did not start") < err.index("the root cause")


def test_an_error_that_explains_itself_brings_nothing_of_what_was_hidden() -> None:
    with pytest.raises(InvalidRequestError) as caught, quiet_engine() as terminal, terminal.step("tracing", "traced"):
        os.write(2, b"noise\n")
        raise InvalidRequestError("the prompt is empty")
    assert not hasattr(caught.value, "__notes__")
