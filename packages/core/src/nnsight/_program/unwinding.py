"""Keep native stack traces of a block within the block's own stack.

Torch records a native stack trace with every error that it raises (`c10::Error`, `c10/util/Backtrace.h`): glibc's
`backtrace` follows the return addresses of at most 64 frames, and one that is skipped. A greenlet has no stack of its
own. Its frames lie on top of those of whoever resumes it, and the return addresses below its lowest frame are of
another call than the one that began it, or no addresses at all. Following them ends the process where one of them
cannot be read; a Python trace function, such as a debugger's or that of coverage, is enough to move one there.

No setting of torch or of greenlet ends the walk there, so each block begins under more native frames than are followed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import MethodType
from typing import Any, Final

FOLLOWED: Final = 65

# A bound method and the built-in function that it calls: each returns through a frame of its own.
_FRAMES_OF_A_LEVEL: Final = 2
_LEVELS: Final = FOLLOWED // _FRAMES_OF_A_LEVEL + 1


def _chain() -> Callable[..., Any]:
    call: Callable[..., Any] = operator.call
    for _ in range(_LEVELS):
        call = MethodType(operator.call, call)
    return call


_CALL: Final = _chain()


def call_above_unwinding(function: Callable[..., Any], /, *args: Any) -> Any:
    """Call a function under more native frames than a stack trace follows.

    They add no line to Python's own tracebacks, and a few microseconds to the beginning of a block.
    """
    return _CALL(function, *args)
