"""The vLLM backend of nnsight: read and change a model inside a real vLLM engine.

Importing the package is cheap and imports no vLLM; asking for `VLLM` does, and refuses a release of vLLM that the
package was not tested with.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnsight_vllm.model import VLLM as VLLM


def _refuse_conflict() -> None:
    """Refuse PyPI's `nnsight` before anything of `nnsight` is imported: its files may be the other distribution's."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        other = version("nnsight")
    except PackageNotFoundError:
        return
    message = (
        f"the distribution nnsight {other} is installed beside nnsight-core and both own the package `nnsight`, so "
        "files of one have overwritten the other's; uninstall both (pip uninstall nnsight nnsight-core) and install "
        "nnsight-core again"
    )
    try:
        from nnsight.errors import DistributionConflictError
    except Exception as error:
        if type(error).__name__ == "DistributionConflictError":
            raise  # our own core is in place, and says the same
        # The other distribution's files may do anything.
        raise ImportError(message) from None
    raise DistributionConflictError(message)


_refuse_conflict()

__version__ = "0.1.0"

__all__ = ["VLLM", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "VLLM":
        from nnsight_vllm.model import VLLM

        return VLLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
