"""Every hook of the core.

The first verb of a hook's name is its calling rule.

`register_*` collects from every plugin, `resolve_*` stops at the first answer that is not None, `check_*` raises to
refuse, `before_*` and `after_*` observe a frozen event. No hook is called on the path of a forward.

A plugin is a module or object under the entry-point group `nnsight`; its functions carry `nnsight.hookimpl`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from nnsight._wire import ValueCodec
    from nnsight.events import EngineSpec, PatchRecord, PrefillPolicy, PromptFacts, RootModule, RunFinished, RunStarted
    from nnsight.families import ModelFamily

hookspec = pluggy.HookspecMarker("nnsight")
hookimpl = pluggy.HookimplMarker("nnsight")


@hookspec
def register_backends(register: Callable[[str, str], None]) -> None:
    """Register backends: call `register(name, "module:Class")`. The class is imported when it is asked for."""


@hookspec
def register_engines(register: Callable[[EngineSpec], None]) -> None:
    """Register the kinds of engine that a backend offers."""


@hookspec
def register_patches(register: Callable[[PatchRecord], None]) -> None:
    """Register a record of each place where a backend changes the code of another package."""


@hookspec
def register_codecs(register: Callable[[type, ValueCodec], None]) -> None:
    """Register how values of a type travel between processes."""


@hookspec(firstresult=True)
def resolve_prefill_policy(facts: PromptFacts) -> PrefillPolicy | None:
    """Decide how traced prompts of such facts are computed. Stops at the first answer that is not None."""


@hookspec(firstresult=True)
def resolve_standard_names(root: RootModule) -> ModelFamily | None:
    """Say where a model has its standard names. Stops at the first answer that is not None."""


@hookspec
def before_run(event: RunStarted) -> None:
    """Observe that a trace is about to run."""


@hookspec
def after_run(event: RunFinished) -> None:
    """Observe that a trace has run."""
