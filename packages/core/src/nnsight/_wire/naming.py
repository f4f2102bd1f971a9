"""Looking up what a name stands for."""

from __future__ import annotations

import importlib
import re
import sys
import types
from typing import TYPE_CHECKING

from nnsight.errors import WireError

if TYPE_CHECKING:
    from nnsight._wire.limits import Limits

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_SHOWN = 120


def find_by_name(module: str, qualname: str) -> object:
    """Walk from an imported module to an object.

    Args:
        module: The module's dotted name.
        qualname: The dotted way from it.

    Returns:
        The object; None when there is none.
    """
    value: object = sys.modules.get(module)
    for name in qualname.split("."):
        value = getattr(value, name, None)
    return value


def import_by_name(module: str, qualname: str, limits: Limits) -> object:
    """Import what a message names.

    A module that may be named does not lend out its imports: the way from it leads through classes only, to an object
    that is no module and whose own module may be named as well.

    Args:
        module: The module's dotted name.
        qualname: The dotted way from it; empty for the module itself.
        limits: What may be named.

    Raises:
        WireError: The name may not be imported, or leads nowhere.
    """
    shown = f"{module}:{qualname}"[:_SHOWN].rstrip(":")
    if not _DOTTED.fullmatch(module) or (qualname and not _DOTTED.fullmatch(qualname)) or module == "__main__":
        raise WireError(f"the message names {shown!r}, which is no name of a module or of an object in one")
    if not limits.allows_module(module):
        raise WireError(f"the message names {shown}, which this process may not import")
    try:
        value: object = importlib.import_module(module)
        if not qualname:
            return value
        *outer, last = qualname.split(".")
        for name in outer:
            value = getattr(value, name)
            if not isinstance(value, type):
                raise WireError(f"the message names {shown}, where {name!r} is no class")
        value = getattr(value, last)
    except WireError:
        raise
    except (Exception, SystemExit) as error:
        raise WireError(
            f"the message names {shown}, which cannot be imported here: {type(error).__name__}: {error}"
        ) from error
    home = getattr(value, "__module__", None)
    if isinstance(value, types.ModuleType) or (isinstance(home, str) and not limits.allows_module(home)):
        raise WireError(f"the message names {shown}, which is at home in a module that this process may not import")
    return value
