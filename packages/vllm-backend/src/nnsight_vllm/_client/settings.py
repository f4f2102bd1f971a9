"""What is set for an engine of ours, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import nnsight_vllm
from nnsight._interleave.budget import check_limit
from nnsight.errors import InvalidRequestError, UnsupportedFeatureError
from nnsight_vllm.compat.switch import DEFAULT_BUDGETS, KEY, SPARE


@dataclass(frozen=True)
class Setting:
    """One setting of an engine.

    Attributes:
        name: vLLM's keyword.
        value: What the engine is built with.
        source: `"nnsight"`, `"caller"` where the keyword was given, or `"vllm"` for what it chose itself.
        reason: Why it is set.
    """

    name: str
    value: object
    source: str
    reason: str


@dataclass(frozen=True)
class _Rule:
    name: str
    value: object
    reason: str
    fixed: bool


_RULES = (
    _Rule("enforce_eager", True, "a replayed CUDA graph runs no Python, so no location could be served", fixed=True),
    _Rule(
        "enable_chunked_prefill",
        False,
        "a block must see its prompt whole; a prompt that does not fit a step waits for one that it fits",
        fixed=False,
    ),
)

_REFUSED: dict[str, tuple[str, object]] = {
    "pipeline_parallel_size": ("a block's values would lie on several stages", 1),
    "data_parallel_size": ("the engine that runs a request would not be known to its caller", 1),
    "speculative_config": ("rejected draft tokens would be served as if they had been generated", None),
    "enable_batch_sharded_sampling": ("each rank would see the logits of some requests only", False),
    "runner": ("a pooling model has no logits or samples, and its blocks are not supported yet", "auto"),
}


_BUDGET_REASONS = {
    "step_budget": "a block that runs so many iterations and calls in one step ends with an error, since a loop "
    "without an end would hold up every request of the engine",
    "byte_budget": "a block that holds so many bytes ends with an error, since all requests share the memory",
}


def engine_settings(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Setting, ...]]:
    """Return the keywords that the engine is built with, and what was set with its reason.

    Raises:
        InvalidRequestError: A keyword contradicts what the engine needs.
        UnsupportedFeatureError: A keyword asks for something that is refused by name.
    """
    built = dict(keywords)
    budgets = {name: _budget(name, built.pop(name, default)) for name, default in DEFAULT_BUDGETS.items()}
    report: list[Setting] = []
    for name, (reason, harmless) in _REFUSED.items():
        value = built.get(name, harmless)
        if value not in (harmless, None) and not (name == "runner" and value == "generate"):
            raise UnsupportedFeatureError(f"{name}={value!r} is not supported: {reason}")
    for rule in _RULES:
        given = built.get(rule.name)
        if rule.fixed and given is not None and given != rule.value:
            raise InvalidRequestError(
                f"{rule.name}={given!r} contradicts this engine, which needs {rule.name}={rule.value!r}: {rule.reason}"
            )
        source = "nnsight" if given is None else "caller"
        built[rule.name] = rule.value if given is None else given
        report.append(Setting(rule.name, built[rule.name], source, rule.reason))
    additional = built.get("additional_config") or {}
    if not isinstance(additional, dict):
        raise InvalidRequestError(
            f"additional_config is a {type(additional).__name__}; nnsight adds a key to it, so give a dict"
        )
    if KEY in additional:
        raise InvalidRequestError(f"additional_config[{KEY!r}] is set by nnsight itself; leave it out")
    built["additional_config"] = {**additional, KEY: {"version": nnsight_vllm.__version__, **budgets}}
    report.append(
        Setting(
            f"additional_config[{KEY!r}]",
            built["additional_config"][KEY],
            "nnsight",
            "turns our part of each worker and of the scheduler on, for this engine alone",
        )
    )
    report.append(
        Setting(
            "prefix cache of traced requests",
            "not read; written under a salt of its own where the block may edit",
            "nnsight",
            "a cached token runs no forward, so nothing could be served for it, and edited keys and values must not "
            "be found by others",
        )
    )
    for name, default in DEFAULT_BUDGETS.items():
        source = "nnsight" if budgets[name] == default else "caller"
        report.append(Setting(name, budgets[name], source, _BUDGET_REASONS[name]))
    return built, tuple(report)


def _budget(name: str, value: object) -> object:
    return value if name == "byte_budget" and value == SPARE else check_limit(name, value)


def chosen_runner(workers: Sequence[Mapping[str, Any]]) -> Setting:
    """Return which of vLLM's model runners an engine got, from what its workers said when it started."""
    runner = workers[0]["runner"]
    return Setting("model runner", runner, "vllm", "vLLM's own choice for this model; blocks are served on both")
