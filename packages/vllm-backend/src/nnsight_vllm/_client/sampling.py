"""Sampling keywords: checked by name here, by value by vLLM."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from nnsight.errors import InvalidRequestError, UnsupportedFeatureError
from nnsight_vllm.compat.public import make_sampling_params, sampling_names

# Keywords of a request that are no sampling parameters.
REQUEST_KEYWORDS = ("lora_request", "priority")
_ALIASES = {"max_new_tokens": "max_tokens"}


def plain_names(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Replace aliases by the names that vLLM knows.

    Raises:
        TypeError: A keyword is given under both its names with different values.
    """
    plain: dict[str, Any] = {}
    for given, value in keywords.items():
        name = _ALIASES.get(given, given)
        if name in plain and plain[name] != value:
            raise TypeError(f"{given} and {name} are the same keyword, given twice with different values")
        plain[name] = value
    return plain


def split_keywords(keywords: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Turn the keywords of an invoke into sampling parameters and keywords of the request.

    Raises:
        TypeError: A keyword is unknown; the message names the nearest one.
        InvalidRequestError: vLLM refuses a value.
        UnsupportedFeatureError: A combination that a block cannot follow.
    """
    known = sampling_names()
    sampling: dict[str, Any] = {}
    request: dict[str, Any] = {}
    for name, value in plain_names(keywords).items():
        if name in REQUEST_KEYWORDS:
            request[name] = value
        elif name in known:
            sampling[name] = value
        else:
            nearest = difflib.get_close_matches(
                name, [*known, *REQUEST_KEYWORDS, *_ALIASES, "stream_saves"], n=1, cutoff=0.5
            )
            hint = (
                f"; did you mean {nearest[0]}?" if nearest else f"; sampling keywords are: {', '.join(sorted(known))}"
            )
            raise TypeError(f"unknown keyword {name!r}{hint}")
    if (sampling.get("n") or 1) != 1:
        raise UnsupportedFeatureError(
            f"n={sampling['n']} asks for several sequences of one prompt, which a block cannot follow yet; "
            "make one invoke for each, with a seed of its own"
        )
    try:
        return make_sampling_params(sampling), request
    except Exception as error:
        raise InvalidRequestError(f"vLLM refuses the sampling keywords: {error}") from error
