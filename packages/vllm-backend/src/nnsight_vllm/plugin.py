"""The vLLM backend as a plugin of nnsight. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Callable

from nnsight.events import EngineSpec, PatchRecord, PrefillPolicy, PromptFacts, RootModule
from nnsight.families import ModelFamily, find_family
from nnsight.hookspecs import hookimpl
from nnsight_vllm.families import VLLM_FAMILIES


@hookimpl
def register_backends(register: Callable[[str, str], None]) -> None:
    """Register `VLLM` under the name `vllm`."""
    register("vllm", "nnsight_vllm.model:VLLM")


@hookimpl
def register_engines(register: Callable[[EngineSpec], None]) -> None:
    """Register the eager engine and the asynchronous one."""
    capabilities = frozenset({"read", "edit", "steps", "every-location"})
    register(EngineSpec("vllm", "eager", "nnsight_vllm._client.eager:EagerEngine", capabilities))
    streaming = capabilities | {"stream"}
    register(EngineSpec("vllm", "async", "nnsight_vllm._client.asynchronous:AsyncEngine", streaming))


@hookimpl
def register_patches(register: Callable[[PatchRecord], None]) -> None:
    """Register a record of each place where vLLM is changed."""
    from nnsight_vllm.compat.records import patch_records

    for record in patch_records():
        register(record)


@hookimpl(trylast=True)
def resolve_prefill_policy(facts: PromptFacts) -> PrefillPolicy:
    """Let prompts be split where their blocks can follow; keep others whole, or refuse one that fits no step."""
    if not facts.splits_prompts:
        return PrefillPolicy("whole", "the engine computes every prompt in one step")
    if facts.follows_pieces:
        return PrefillPolicy("split", "the block can follow a prompt that is computed in several parts")
    if facts.num_prompt_tokens > facts.step_budget:
        return PrefillPolicy(
            "refused",
            f"the prompt has {facts.num_prompt_tokens} tokens and the engine computes at most {facts.step_budget} in "
            "a step, so the block would see slices of it; raise max_num_batched_tokens, leave enable_chunked_prefill "
            "at its default, or write a block that can follow slices: one that only reads, at places that its source "
            "shows, or that changes every row alike by constants",
        )
    return PrefillPolicy("whole", "the prompt fits one step, and is kept whole beside prompts that are split")


@hookimpl(trylast=True)
def resolve_standard_names(root: RootModule) -> ModelFamily | None:
    """Find the standard names in vLLM's own models."""
    return find_family(VLLM_FAMILIES, root.module)
