"""Where vLLM's models have the standard names. Imports no vLLM."""

from __future__ import annotations

from nnsight.families import Argument, LayerArgument, ModelFamily, StandardValue

_HIDDEN = Argument(1, "hidden_states")
_RESIDUAL = Argument(2, "residual")


def _fused_values(attention: str, norm: str, mlp: str) -> dict[str, StandardValue]:
    """Find the values of a layer that takes and returns the stream as two tensors, added up by the next norm.

    A norm with two arguments adds them up in place: its input is the stream, and a write of its first argument reaches
    all that follows.

    Args:
        attention: The module whose output attention adds to the stream.
        norm: The norm before the MLP.
        mlp: The module whose output the MLP adds to the stream.

    Source:
        vLLM 0.27.1, model_executor/models/llama.py, LlamaDecoderLayer.forward
    """
    return {
        "resid_pre": StandardValue("", "inputs", _HIDDEN, plus=_RESIDUAL),
        "attn_out": StandardValue(attention, "output"),
        "resid_mid": StandardValue(norm, "inputs", Argument(0, "x"), plus=Argument(1, "residual")),
        "mlp_out": StandardValue(mlp, "output"),
        "resid_post": StandardValue("", "output", 0, plus=1),
    }


VLLM_FAMILIES = (
    ModelFamily(
        package="vllm",
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
        values=_fused_values("self_attn", "post_attention_layernorm", "mlp"),
        unembed_value="logits",
    ),
    ModelFamily(
        package="vllm",
        classes=("Gemma3ForCausalLM",),
        layers="model.layers",
        embed="model.embed_tokens",
        final_norm="model.norm",
        unembed="lm_head",
        values=_fused_values("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        unembed_value="logits",
    ),
    ModelFamily(
        package="vllm",
        classes=("Gemma2ForCausalLM",),
        layers="model.layers",
        embed="model.embed_tokens",
        final_norm="model.norm",
        # It has no module of its own for it.
        unembed="model.embed_tokens",
        values=_fused_values("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        unembed_value="logits",
    ),
    ModelFamily(
        package="vllm",
        classes=("GPT2LMHeadModel",),
        layers="transformer.h",
        embed="transformer.wte",
        final_norm="transformer.ln_f",
        unembed="lm_head",
        # The stream is one tensor, and passes the MLP's norm by.
        values={
            "resid_pre": StandardValue("", "input"),
            "attn_out": StandardValue("attn", "output"),
            "resid_mid": StandardValue("attn", "output", plus=LayerArgument(0, "hidden_states")),
            "mlp_out": StandardValue("mlp", "output"),
            "resid_post": StandardValue("", "output"),
        },
        unembed_value="logits",
    ),
)
