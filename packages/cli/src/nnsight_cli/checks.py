"""What `nnsight doctor` looks at."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from nnsight import plugins
from nnsight._installation import refuse_conflict
from nnsight.diagnosis import Finding
from nnsight.errors import DistributionConflictError
from nnsight_cli import __version__

_NEEDED = ("nnsight-core", "nnsight-vllm", "nnsight-cli")
_OPTIONAL = ("nnsight-serve",)


def check_installation() -> list[Finding]:
    """Look at what is installed, without any backend."""
    return [
        Finding("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding("torch", "ok", _version("torch") or "not installed"),
        _check_distributions(),
        _check_conflict(),
        _check_plugins(),
    ]


def check_backends(checkpoint: str | None, engine_keywords: dict[str, Any]) -> Iterator[Finding]:
    """Load every registered backend, and ask each that can tell for its own findings.

    Args:
        checkpoint: What an engine is started on; None starts none.
        engine_keywords: Keywords of that engine.
    """
    registered = plugins.registered_backends()
    if "vllm" not in registered:
        yield Finding("vllm backend", "error", "not registered by any plugin", "pip install nnsight-vllm")
    for name, reference in sorted(registered.items()):
        try:
            backend = plugins.load_backend(name)
        except Exception as error:  # noqa: BLE001 - whatever stops a backend is what the user asked to find out
            yield Finding(f"{name} backend", "error", f"{reference} does not load", f"{type(error).__name__}: {error}")
            continue
        yield Finding(f"{name} backend", "ok", reference)
        diagnose = getattr(backend, "diagnose", None)
        if diagnose is not None:
            yield from diagnose(checkpoint, **engine_keywords)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _check_distributions() -> Finding:
    found = {name: _version(name) for name in (*_NEEDED, *_OPTIONAL)}
    listed = ", ".join(f"{name} {release or 'not installed'}" for name, release in found.items())
    wrong = [name for name, release in found.items() if release != __version__ and (release or name in _NEEDED)]
    if wrong:
        wanted = " ".join(f"{name}=={__version__}" for name in wrong)
        return Finding("distributions", "error", listed, f"they work together at one version: pip install {wanted}")
    return Finding("distributions", "ok", listed)


def _check_conflict() -> Finding:
    try:
        refuse_conflict()
    except DistributionConflictError as error:
        return Finding("PyPI's nnsight", "error", f"installed, {_version('nnsight')}", str(error))
    return Finding("PyPI's nnsight", "ok", "not installed, as it must be")


def _check_plugins() -> Finding:
    names = sorted(name for name, plugin in plugins.plugin_manager().list_name_plugin() if plugin is not None)
    return Finding("nnsight plugins", "ok", ", ".join(names) or "none")
