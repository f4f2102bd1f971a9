"""The vLLM backend of nnsight: read and change a model inside a real vLLM engine.

Importing the package is cheap and imports no vLLM; asking for `VLLM` does, and refuses a release of vLLM that the
package was not tested with.
"""

from typing import TYPE_CHECKING, Any

from nnsight._installation import refuse_conflict

if TYPE_CHECKING:
    from nnsight_vllm.model import VLLM as VLLM

refuse_conflict()

__version__ = "0.1.0"

__all__ = ["VLLM", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "VLLM":
        from nnsight_vllm.model import VLLM

        return VLLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
