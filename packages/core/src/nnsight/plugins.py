"""The plugin manager: one per process, made when first asked for, never at import."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from nnsight import hookspecs
from nnsight.errors import BackendNotFoundError, PluginAnswerError, PluginLoadError
from nnsight.events import EngineSpec, PatchRecord, PrefillPolicy, PromptFacts, RootModule
from nnsight.families import ModelFamily

if TYPE_CHECKING:
    from torch import nn

    from nnsight._wire import ValueCodec

GROUP = "nnsight"

_T = TypeVar("_T")


def create_plugin_manager(*, entry_points: bool = True) -> pluggy.PluginManager:
    """Make a plugin manager with the core's hooks.

    Args:
        entry_points: Load the plugins of installed distributions. `NNSIGHT_PLUGINS=a,b` in the environment selects
            among them by name; an empty value selects none.

    Raises:
        PluginLoadError: An installed plugin failed to load.
    """
    manager = pluggy.PluginManager("nnsight")
    manager.add_hookspecs(hookspecs)
    if entry_points:
        selected = os.environ.get("NNSIGHT_PLUGINS")
        names = None if selected is None else {name.strip() for name in selected.split(",") if name.strip()}
        for entry in _installed():
            if names is None or entry.name in names:
                manager.register(_load(entry), name=entry.name)
    return manager


@lru_cache(maxsize=1)
def plugin_manager() -> pluggy.PluginManager:
    """Return the plugin manager of this process."""
    return create_plugin_manager()


def _installed() -> list[EntryPoint]:
    unique = {(entry.name, entry.value): entry for entry in entry_points(group=GROUP)}
    return sorted(unique.values(), key=lambda entry: entry.name)


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        owner = entry.dist.name if entry.dist is not None else "an unknown distribution"
        raise PluginLoadError(
            f"the plugin {entry.name!r} ({entry.value}) of {owner} failed to load: {type(error).__name__}: {error}; "
            f"repair or uninstall {owner}, or leave it out with NNSIGHT_PLUGINS"
        ) from error


def registered_backends() -> dict[str, str]:
    """Return `"module:Class"` of every backend by name.

    Raises:
        PluginAnswerError: A plugin registered something else.
    """
    found: dict[str, str] = {}

    def register(name: str, reference: str) -> None:
        _check("register_backends", name, str)
        found[name] = _check("register_backends", reference, str)

    plugin_manager().hook.register_backends(register=register)
    return found


def registered_engines(backend: str | None = None) -> list[EngineSpec]:
    """Return the engines of one backend, or of all.

    Raises:
        PluginAnswerError: A plugin registered something else.
    """
    found: list[EngineSpec] = []
    plugin_manager().hook.register_engines(
        register=lambda spec: found.append(_check("register_engines", spec, EngineSpec))
    )
    return [spec for spec in found if backend is None or spec.backend == backend]


def registered_patches() -> list[PatchRecord]:
    """Return a record of each place where a backend changes the code of another package.

    Raises:
        PluginAnswerError: A plugin registered something else.
    """
    found: list[PatchRecord] = []
    plugin_manager().hook.register_patches(
        register=lambda record: found.append(_check("register_patches", record, PatchRecord))
    )
    return found


def collect_codecs(register: Callable[[type, ValueCodec], None]) -> None:
    """Hand each codec that plugins register to `register`.

    Args:
        register: Takes a type and its codec; raises `ValueError` for a codec whose tag another one has.

    Raises:
        PluginAnswerError: A plugin registered something else, or a tag that is taken.
    """

    def add(type_: type, codec: ValueCodec) -> None:
        _check("register_codecs", type_, type)
        named = isinstance(getattr(codec, "tag", None), str)
        if not (named and all(callable(getattr(codec, name, None)) for name in ("encode", "decode"))):
            raise _refusal("register_codecs", f"{codec!r}, which has not the tag, encode and decode of a codec")
        try:
            register(type_, codec)
        except ValueError as error:
            raise _refusal("register_codecs", f"{codec!r}: {error}") from error

    plugin_manager().hook.register_codecs(register=add)


def decide_prefill(facts: PromptFacts) -> PrefillPolicy | None:
    """Return how plugins decide that a prompt is computed, or None where none of them does.

    Raises:
        PluginAnswerError: A plugin answered with something else.
    """
    answer = plugin_manager().hook.resolve_prefill_policy(facts=facts)
    return None if answer is None else _check("resolve_prefill_policy", answer, PrefillPolicy)


def find_family(root: nn.Module) -> ModelFamily | None:
    """Return where a model has its standard names, or None where no plugin knows it.

    Raises:
        PluginAnswerError: A plugin answered with something else.
    """
    answer = plugin_manager().hook.resolve_standard_names(root=RootModule(root))
    return None if answer is None else _check("resolve_standard_names", answer, ModelFamily)


def _check(hook: str, answer: object, expected: type[_T]) -> _T:
    if isinstance(answer, expected):
        return answer
    raise _refusal(hook, f"{answer!r}, which is no {expected.__name__}")


def _refusal(hook: str, what: str) -> PluginAnswerError:
    manager = plugin_manager()
    asked = sorted(str(manager.get_name(each.plugin)) for each in getattr(manager.hook, hook).get_hookimpls())
    return PluginAnswerError(f"a plugin answered {hook} with {what}; the plugins that answer it: {', '.join(asked)}")


def load_backend(name: str) -> Any:
    """Import the class of a backend.

    Raises:
        BackendNotFoundError: No plugin registers that name.
    """
    backends = registered_backends()
    if name not in backends:
        raise BackendNotFoundError(
            f"no backend is called {name!r}; installed: {', '.join(sorted(backends)) or 'none'}; "
            "install the distribution that brings it"
        )
    return load_object(backends[name])


def find_engine(backend: str, name: str) -> EngineSpec:
    """Return one engine of a backend.

    Raises:
        BackendNotFoundError: The backend has no engine of that name.
    """
    engines = registered_engines(backend)
    for spec in engines:
        if spec.name == name:
            return spec
    raise BackendNotFoundError(
        f"the {backend} backend has no engine called {name!r}; "
        f"it has: {', '.join(sorted(spec.name for spec in engines)) or 'none'}"
    )


def load_object(reference: str) -> Any:
    """Import what a `"module:name"` string names."""
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
