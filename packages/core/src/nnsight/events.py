"""What hooks are given: one frozen event each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nnsight.errors import PluginAnswerError

if TYPE_CHECKING:
    from torch import nn


_WAYS_TO_PREFILL: Final = ("whole", "split", "refused")


@dataclass(frozen=True)
class EngineSpec:
    """One kind of engine that a backend offers.

    Attributes:
        backend: Name of the backend, such as `"vllm"`.
        name: Name of the engine, such as `"eager"`.
        factory: `"module:callable"`; imported when an engine of this kind is asked for.
        capabilities: What its blocks can do: `"read"`, `"edit"`, `"steps"`, `"gradients"`, `"every-location"`, ...
    """

    backend: str
    name: str
    factory: str
    capabilities: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PatchRecord:
    """One place where a backend changes the code of another package.

    Attributes:
        target: `"module:qualified.name"` that is changed.
        why: What cannot be done without it.
        source: Where the reader finds the changed code.
        versions: The versions that it was tested with, as a version specifier.
        remove_when: What makes the patch unnecessary.
        signature: Names of the parameters that the patch relies on.
    """

    target: str
    why: str
    source: str
    versions: str
    remove_when: str
    signature: tuple[str, ...] = ()


@dataclass(frozen=True)
class PromptFacts:
    """What a prefill guard is told about one request.

    Attributes:
        num_prompt_tokens: Length of the prompt in tokens.
        step_budget: Most tokens that the engine computes in one step.
        splits_prompts: Whether the engine may split a prompt over several steps.
        read_only: Whether the program changes nothing.
        follows_pieces: Whether the block can follow a prompt that is computed in several parts: it reads at places that
            are known beforehand, or changes every row alike by constants.
    """

    num_prompt_tokens: int
    step_budget: int
    splits_prompts: bool
    read_only: bool
    follows_pieces: bool


@dataclass(frozen=True)
class PrefillPolicy:
    """How a traced prompt is computed.

    Attributes:
        how: `"whole"`, `"split"` or `"refused"`.
        reason: Why, in one sentence; shown to the user where the prompt is refused.

    Raises:
        PluginAnswerError: `how` is none of these.
    """

    how: str
    reason: str

    def __post_init__(self) -> None:
        """Refuse what no engine knows."""
        if self.how not in _WAYS_TO_PREFILL:
            raise PluginAnswerError(
                f"PrefillPolicy(how={self.how!r}) says no way to compute a prompt; "
                f"`how` is one of {', '.join(map(repr, _WAYS_TO_PREFILL))}"
            )


@dataclass(frozen=True)
class RootModule:
    """The model whose standard names are asked for.

    Attributes:
        module: The root module; on the meta device on the side of a client.
    """

    module: nn.Module


@dataclass(frozen=True)
class RunStarted:
    """A trace is about to run.

    Attributes:
        backend: Name of the backend.
        requests: How many requests it makes.
    """

    backend: str
    requests: int


@dataclass(frozen=True)
class RunFinished:
    """A trace has run.

    Attributes:
        backend: Name of the backend.
        requests: How many requests it made.
        seconds: Wall-clock time from the start of the run.
        errors: The exceptions of the requests that failed.
    """

    backend: str
    requests: int
    seconds: float
    errors: tuple[BaseException, ...] = ()
