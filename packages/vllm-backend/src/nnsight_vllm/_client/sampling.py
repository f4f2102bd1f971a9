"""Sampling keywords: checked by name here, by value by vLLM."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from nnsight.errors import InvalidRequestError, UnsupportedFeatureError
from nnsight_vllm.compat.public import make_sampling_params, refuse_unreadable, sampling_names

# Keywords of a request that are no sampling parameters, with vLLM's defaults.
REQUEST_KEYWORDS: Final[Mapping[str, Any]] = {"lora_request": None, "priority": 0}
_ALIASES = {"max_new_tokens": "max_tokens"}
_PLAIN = frozenset({int, float, bool, str, type(None)})
_BEAMS = (
    "beam search makes a request of one token for each beam and step, and none of them would be the block's; sample "
    "several sequences with n instead, or call beam_search of model.vllm_entrypoint, which runs no block"
)
_REFUSED = {
    **dict.fromkeys(("use_beam_search", "beam_width", "num_beams", "length_penalty"), _BEAMS),
    "best_of": "vLLM has it no more; ask for n sequences and choose among them by their cumulative_logprob",
    "pooling_params": "a pooling request has no logits or samples; read states in a block instead",
}


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
        UnsupportedFeatureError: A keyword asks for a way of decoding that is refused by name.
    """
    known = sampling_names()
    sampling: dict[str, Any] = {}
    request: dict[str, Any] = {}
    for name, value in plain_names(keywords).items():
        if name in REQUEST_KEYWORDS:
            # None takes the place of a keyword of the trace, and asks for vLLM's default.
            if value is not None:
                request[name] = _readable(name, value)
        elif name in known:
            sampling[name] = value
        elif name in _REFUSED:
            raise UnsupportedFeatureError(f"{name}={value!r} is not supported: {_REFUSED[name]}")
        else:
            nearest = difflib.get_close_matches(
                name, [*known, *REQUEST_KEYWORDS, *_ALIASES, "stream_saves"], n=1, cutoff=0.5
            )
            hint = (
                f"; did you mean {nearest[0]}?" if nearest else f"; sampling keywords are: {', '.join(sorted(known))}"
            )
            raise TypeError(f"unknown keyword {name!r}{hint}")
    try:
        return make_sampling_params(sampling), request
    except Exception as error:
        raise InvalidRequestError(f"vLLM refuses {_blamed(error, sampling)}: {error}") from error


def _readable(name: str, value: object) -> object:
    try:
        refuse_unreadable(name, value)
    except Exception as error:
        raise InvalidRequestError(f"vLLM refuses {name}={value!r}: {error}") from error
    return value


def _blamed(error: Exception, sampling: Mapping[str, Any]) -> str:
    """Return the keyword that an error of vLLM's is about, where it says so as the path of a field."""
    path = re.search(r"\$\.(\w+)", str(error))
    if path is None or path[1] not in sampling:
        return "the sampling keywords"
    return f"{path[1]}={sampling[path[1]]!r}"


class SharedParams:
    """Sampling parameters for requests one after the other: as long as their keywords are the same, they share them.

    Whoever changes what is shared copies it before.
    """

    def __init__(self) -> None:
        """Begin without any."""
        # One thing, so that a thread never sees the keywords of one call with the parameters of another.
        self._last: tuple[object, Any] = (None, None)

    def split(self, keywords: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Do as `split_keywords`."""
        # Other values may change before they are given again, or not say whether they are equal.
        plain = all([type(value) in _PLAIN for value in keywords.values()])
        asked = [(name, type(value), value) for name, value in keywords.items()] if plain else None
        known, found = self._last
        if asked is None or asked != known:
            found = split_keywords(keywords)
            self._last = (asked, found)
        params, request = found
        return params, dict(request)
