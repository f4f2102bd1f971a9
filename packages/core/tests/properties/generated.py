"""Run text as a module of its own, whose source can be found like that of any file."""

from __future__ import annotations

import itertools
import linecache
import textwrap
from typing import Any

from hypothesis import HealthCheck, Phase, settings

_count = itertools.count()

# Without the phase that explains a failure: it traces every line, which takes minutes.
_PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
_EVERY = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=_PHASES)
FEW = settings(_EVERY, max_examples=40, derandomize=True)
MANY = settings(_EVERY, max_examples=1500, print_blob=True)


def run_module(text: str, **names: Any) -> dict[str, Any]:
    """Run `text` with these globals and return its globals."""
    filename = f"<generated {next(_count)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    try:
        exec(compile(text, filename, "exec"), names)
    finally:
        del linecache.cache[filename]
    return names


def indent(text: str, levels: int = 1) -> str:
    return textwrap.indent(text, "    " * levels)
