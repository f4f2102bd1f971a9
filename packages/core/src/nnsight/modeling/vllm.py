"""Doorway to the vLLM backend, which lives in `nnsight_vllm`."""

try:
    from nnsight_vllm import VLLM as VLLM
except ModuleNotFoundError as error:
    if error.name != "nnsight_vllm":
        raise  # installed but broken: show the real cause
    raise ImportError("nnsight.modeling.vllm needs the vLLM backend: pip install nnsight-vllm") from error
