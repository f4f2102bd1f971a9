"""Look inside a model while it runs, and change what it does."""

from nnsight._installation import refuse_conflict

refuse_conflict()

from nnsight import errors  # noqa: E402 - nothing is imported from an installation in conflict
from nnsight._envoy import Envoy  # noqa: E402
from nnsight._program import save  # noqa: E402
from nnsight._torch.model import NNsight  # noqa: E402
from nnsight._trace import Cache, Edit, Session, TracedModel, Tracer  # noqa: E402
from nnsight.errors import NNsightError  # noqa: E402
from nnsight.hookspecs import hookimpl  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "Cache",
    "Edit",
    "Envoy",
    "NNsight",
    "NNsightError",
    "Session",
    "TracedModel",
    "Tracer",
    "__version__",
    "errors",
    "hookimpl",
    "save",
]
