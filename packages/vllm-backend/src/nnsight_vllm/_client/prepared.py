"""A checked request of the client."""

from __future__ import annotations

from typing import Any

import msgspec


# There is one for each request, and nothing that it holds can refer back to it.
class PreparedRequest(msgspec.Struct, gc=False):
    """The input of one request, in vLLM's own forms.

    Attributes:
        prompt: `{"prompt_token_ids": [...], ...}`.
        params: Sampling parameters, which other requests may share.
        keywords: Keywords of the request, such as `lora_request`.
        streams: Whether saves come home as they are made.
    """

    prompt: dict[str, Any]
    params: Any
    keywords: dict[str, Any] = {}
    streams: bool = False

    @property
    def num_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.prompt["prompt_token_ids"])
