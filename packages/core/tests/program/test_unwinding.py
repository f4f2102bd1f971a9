"""A native stack trace that is taken in a block ends within the block's own stack."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap

import pytest
import torch

from nnsight import NNsight
from nnsight._program.unwinding import FOLLOWED

C_LIBRARY = ctypes.CDLL(None)

# An error of torch inside a block, by what surrounds it: each moves other words below the block's lowest frame.
SCRIPT = """
    import sys, threading
    import torch
    from nnsight import NNsight

    model = NNsight(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2)))
    states, wrong = torch.ones(3, 2), torch.ones(7, 7)

    def follow(frame, event, arg):
        return follow

    def fail_in_the_block():
        try:
            with model.trace(states):
                product = model[0].output @ wrong
        except RuntimeError as error:
            assert "shapes" in str(error), error
        else:
            raise AssertionError

    def fail_in_a_function_and_deep():
        def deep(number):
            return deep(number - 1) if number else torch.matmul(model[2].output, wrong)

        for depth in (0, 20):
            try:
                with model.trace(states):
                    deep(depth)
            except RuntimeError as error:
                assert "shapes" in str(error), error

    for switch in (lambda function: None, sys.settrace, sys.setprofile):
        switch(follow)
        for fail in (fail_in_the_block, fail_in_a_function_and_deep):
            fail()
            thread = threading.Thread(target=fail)
            thread.start()
            thread.join()
        switch(None)
    print("alive")
"""


def test_an_error_of_torch_in_a_block_under_a_trace_function_is_an_exception(tmp_path: object) -> None:
    path = f"{tmp_path}/script.py"
    with open(path, "w") as file:
        file.write(textwrap.dedent(SCRIPT))
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr


class _Symbol(ctypes.Structure):
    """What `dladdr` tells of an address."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def libraries_of_the_frames() -> list[str]:
    """Return the libraries of the native frames that a stack trace of torch follows, the innermost first."""
    addresses = (ctypes.c_void_p * FOLLOWED)()
    count = C_LIBRARY.backtrace(addresses, FOLLOWED)
    symbol = _Symbol()
    found = []
    for address in addresses[:count]:
        known = C_LIBRARY.dladdr(ctypes.c_void_p(address), ctypes.byref(symbol))
        found.append((symbol.file or b"").decode() if known else "")
    return found


@pytest.mark.skipif(not hasattr(C_LIBRARY, "backtrace"), reason="the C library takes no stack traces")
def test_the_frames_that_are_followed_are_all_of_the_block() -> None:
    model = NNsight(torch.nn.Linear(2, 2))
    with model.trace(torch.ones(1, 2)):
        before = libraries_of_the_frames().save()
        model.output
        after = libraries_of_the_frames().save()
    for libraries in (before, after):
        assert len(libraries) == FOLLOWED
        assert not [name for name in libraries if "greenlet" in name]
