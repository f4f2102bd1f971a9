"""What plugins may answer, and that anything else is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import nn

from nnsight import hookimpl
from nnsight._wire import default_codecs
from nnsight.errors import PluginAnswerError
from nnsight.events import PrefillPolicy, PromptFacts
from nnsight.plugins import (
    collect_codecs,
    decide_prefill,
    find_engine,
    find_family,
    load_backend,
    plugin_manager,
    registered_patches,
)

FACTS = PromptFacts(4, 8, splits_prompts=True, read_only=True, follows_pieces=True)


class Wrong:
    """Answers every hook with something that it does not take."""

    @hookimpl
    def register_backends(self, register: Callable[[Any, Any], None]) -> None:
        register("wrong", dict)

    @hookimpl
    def register_engines(self, register: Callable[[Any], None]) -> None:
        register("an engine")

    @hookimpl
    def register_patches(self, register: Callable[[Any], None]) -> None:
        register({"target": "module:name"})

    @hookimpl
    def register_codecs(self, register: Callable[[Any, Any], None]) -> None:
        register("complex", self)

    @hookimpl
    def resolve_prefill_policy(self, facts: PromptFacts) -> Any:
        return "split"

    @hookimpl
    def resolve_standard_names(self, root: Any) -> Any:
        return {"layers": "model.layers"}


@pytest.fixture
def wrong() -> Iterator[None]:
    plugin = Wrong()
    plugin_manager().register(plugin, name="the-wrong-one")
    yield
    plugin_manager().unregister(plugin)


@pytest.mark.usefixtures("wrong")
@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: load_backend("torch"), r"register_backends with <class 'dict'>, which is no str"),
        (lambda: find_engine("torch", "in-process"), "register_engines with 'an engine', which is no EngineSpec"),
        (registered_patches, r"register_patches with \{'target'.*\}, which is no PatchRecord"),
        (lambda: collect_codecs(default_codecs().register), "register_codecs with 'complex', which is no type"),
        (lambda: decide_prefill(FACTS), "resolve_prefill_policy with 'split', which is no PrefillPolicy"),
        (lambda: find_family(nn.Linear(1, 1)), r"resolve_standard_names with \{'layers'.*\}, which is no ModelFamily"),
    ],
)
def test_another_answer_is_refused_with_the_plugins_that_answer(ask: Callable[[], object], told: str) -> None:
    with pytest.raises(PluginAnswerError, match=f"a plugin answered {told}.*the-wrong-one"):
        ask()


class Codec:
    """Writes and reads nothing."""

    def __init__(self, tag: object) -> None:
        self.tag = tag

    def encode(self, value: object, encoder: object) -> object:
        return None

    def decode(self, payload: object, decoder: object) -> object:
        return None


@pytest.mark.parametrize(
    ("codec", "told"),
    [
        (object(), "which has not the tag, encode and decode of a codec"),
        (Codec(7), "which has not the tag, encode and decode of a codec"),
        (Codec("ref"), "the tag 'ref' is reserved"),
        (Codec("struct"), "another codec has the tag 'struct'"),
    ],
)
def test_a_codec_that_cannot_be_one_is_refused_with_the_plugins_that_register(codec: Any, told: str) -> None:
    class Registers:
        @hookimpl
        def register_codecs(self, register: Callable[[Any, Any], None]) -> None:
            register(complex, codec)

    plugin = Registers()
    plugin_manager().register(plugin, name="the-wrong-one")
    try:
        with pytest.raises(PluginAnswerError, match=f"{told}.*the-wrong-one"):
            collect_codecs(default_codecs().register)
    finally:
        plugin_manager().unregister(plugin)


@pytest.mark.parametrize("how", ["Split", "", None])
def test_a_policy_that_says_no_way_to_compute_a_prompt_is_refused(how: Any) -> None:
    with pytest.raises(PluginAnswerError, match=rf"how={how!r}.*'whole', 'split', 'refused'"):
        PrefillPolicy(how, "a mistake")


@pytest.mark.parametrize("how", ["whole", "split", "refused"])
def test_every_way_to_compute_a_prompt_is_taken(how: str) -> None:
    assert PrefillPolicy(how, "as it should be").how == how
