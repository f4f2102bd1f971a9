"""Where models of Hugging Face Transformers have the standard names."""

from __future__ import annotations

from dataclasses import replace

from nnsight.families import LayerArgument, ModelFamily, StandardValue

_STREAM = LayerArgument(0, "hidden_states")
_RESID_PRE = StandardValue("", "input")
_RESID_POST = StandardValue("", "output")


def _values(attention: str, mlp: str) -> dict[str, StandardValue]:
    """Find the values of a layer by the modules whose outputs are added to the stream.

    The stream passes the MLP's norm by, so a write of that norm's input would not reach the layer's output: the stream
    between attention and MLP is what the layer was given and what attention adds.
    """
    return {
        "resid_pre": _RESID_PRE,
        "attn_out": StandardValue(attention, "output"),
        "resid_mid": StandardValue(attention, "output", plus=_STREAM),
        "mlp_out": StandardValue(mlp, "output"),
        "resid_post": _RESID_POST,
    }


LLAMA = ModelFamily(
    package="transformers",
    classes=(
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
    ),
    layers="model.layers",
    embed="model.embed_tokens",
    final_norm="model.norm",
    unembed="lm_head",
    values=_values("self_attn", "mlp"),
)
GEMMA2 = replace(
    LLAMA,
    classes=("Gemma2ForCausalLM",),
    values=_values("post_attention_layernorm", "post_feedforward_layernorm"),
)
GEMMA3 = replace(GEMMA2, classes=("Gemma3ForCausalLM",))
GPT2 = ModelFamily(
    package="transformers",
    classes=("GPT2LMHeadModel",),
    layers="transformer.h",
    embed="transformer.wte",
    final_norm="transformer.ln_f",
    unembed="lm_head",
    values=_values("attn", "mlp"),
)

HF_FAMILIES = (LLAMA, GEMMA2, GEMMA3, GPT2)
