"""A checked request of the client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


# Not frozen, since one is made for each request: that would take four times as long.
@dataclass(slots=True)
class PreparedRequest:
    """The input of one request, in vLLM's own forms.

    Attributes:
        prompt: `{"prompt_token_ids": [...], ...}`.
        params: Sampling parameters, which other requests may share.
        keywords: Keywords of the request, such as `lora_request`.
        streams: Whether saves come home as they are made.
    """

    prompt: dict[str, Any]
    params: Any
    keywords: dict[str, Any] = field(default_factory=dict)
    streams: bool = False

    @property
    def num_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.prompt["prompt_token_ids"])
