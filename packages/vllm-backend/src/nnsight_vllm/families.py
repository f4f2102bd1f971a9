"""Where vLLM's models have the standard names. Imports no vLLM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nnsight._torch.families import GEMMA2, GEMMA3, GPT2, LLAMA
from nnsight.families import Argument, ModelFamily, StandardValue

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


def _served(family: ModelFamily, **changes: Any) -> ModelFamily:
    """Return a family as vLLM has it, which takes names of classes and modules over from Transformers."""
    return replace(family, package="vllm", unembed_value="logits", **changes)


_GEMMA_VALUES = _fused_values("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")

VLLM_FAMILIES = (
    _served(LLAMA, values=_fused_values("self_attn", "post_attention_layernorm", "mlp")),
    _served(GEMMA3, values=_GEMMA_VALUES),
    # It has no module of its own that turns hidden states into logits.
    _served(GEMMA2, values=_GEMMA_VALUES, unembed=GEMMA2.embed),
    # The stream is one tensor, and passes the MLP's norm by, as in Transformers.
    _served(GPT2),
)
