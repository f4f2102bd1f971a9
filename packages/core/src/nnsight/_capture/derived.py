"""Code that this package has compiled itself.

It differs from what its file compiles to, because saves are rewritten, so it cannot be compared with the file. Its
source is known instead. The body of a trace that holds invokes is such code, as are functions that have travelled.
"""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING

from nnsight._capture.codes import PerCode

if TYPE_CHECKING:
    from nnsight._capture.source import BlockSource, FunctionSource

_sources: PerCode[BlockSource | FunctionSource] = PerCode()


def register_source(code: CodeType, source: BlockSource | FunctionSource) -> None:
    """Remember what a code object, and those inside it, were compiled from."""
    _sources.set(code, source)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            register_source(constant, source)


def source_of(code: CodeType) -> BlockSource | FunctionSource | None:
    """What a code object was compiled from, None if it was not compiled here."""
    return _sources.get(code)
