"""The five forms of a prompt, brought into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnsight.errors import InvalidRequestError

_INTEGERS = frozenset({int})
_FORMS = (
    "give a string, a list of token ids, the output of a tokenizer, {'prompt_token_ids': [...]} or {'prompt': '...'}"
)


def token_prompt(prompt: object, tokenizer: Any, max_model_len: int) -> dict[str, Any]:
    """Bring a prompt into the form `{"prompt_token_ids": [...]}`, with its text where it has one.

    Args:
        prompt: One prompt in any of its forms.
        tokenizer: The engine's tokenizer.
        max_model_len: Most tokens that a request may have, the generated ones included.

    Raises:
        InvalidRequestError: It is empty, too long, several prompts, or none of the forms.
    """
    found = _with_tokens(prompt, tokenizer)
    tokens = found["prompt_token_ids"]
    if not tokens:
        raise InvalidRequestError("the prompt is empty: it has no tokens; give it at least one")
    if len(tokens) >= max_model_len:
        raise InvalidRequestError(
            f"the prompt has {len(tokens)} tokens, and with at least one to generate it must stay within the engine's "
            f"max_model_len of {max_model_len}; shorten it, or build the engine with a larger max_model_len"
        )
    size = _vocabulary(tokenizer)
    if size and not (min(tokens) >= 0 and max(tokens) < size):
        wrong = next(token for token in tokens if not 0 <= token < size)
        raise InvalidRequestError(f"the prompt has the token id {wrong}, outside the vocabulary of {size}")
    return found


def _with_tokens(prompt: object, tokenizer: Any) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"prompt_token_ids": list(tokenizer.encode(prompt)), "prompt": prompt}
    if isinstance(prompt, Mapping):
        return _from_mapping(prompt, tokenizer)
    if hasattr(prompt, "input_ids"):
        return _from_mapping(
            {"input_ids": prompt.input_ids, "attention_mask": getattr(prompt, "attention_mask", None)}, tokenizer
        )
    if hasattr(prompt, "tolist"):
        prompt = prompt.tolist()
    if isinstance(prompt, list | tuple):
        return {"prompt_token_ids": _ids(prompt)}
    raise InvalidRequestError(f"a prompt cannot be a {type(prompt).__name__}; {_FORMS}")


def _from_mapping(prompt: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    if "prompt_token_ids" in prompt:
        return {**prompt, "prompt_token_ids": _ids(_plain(prompt["prompt_token_ids"]))}
    if "prompt" in prompt:
        text = prompt["prompt"]
        if not isinstance(text, str):
            raise InvalidRequestError(f"the prompt's text is a {type(text).__name__}, not a string")
        return {**prompt, **_with_tokens(text, tokenizer)}
    if "input_ids" in prompt:
        ids = _single_row(_plain(prompt["input_ids"]), "input_ids")
        mask = prompt.get("attention_mask")
        if mask is not None:
            keep = _single_row(_plain(mask), "attention_mask")
            ids = [token for token, kept in zip(ids, keep, strict=True) if kept]
        return {"prompt_token_ids": _ids(ids)}
    raise InvalidRequestError(f"a prompt with the keys {sorted(map(str, prompt))} is not known; {_FORMS}")


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _single_row(rows: list[Any], what: str) -> list[Any]:
    if rows and isinstance(rows[0], list | tuple):
        if len(rows) != 1:
            raise InvalidRequestError(
                f"{what} holds {len(rows)} prompts, and an invoke takes one; make one invoke for each: "
                "`with tracer.invoke(prompt):`"
            )
        return list(rows[0])
    return rows


def _ids(given: Any) -> list[int]:
    values: list[Any] = list(given)
    if _INTEGERS.issuperset(map(type, values)):
        return values
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return [int(value) for value in values]
    if len(values) == 1 and isinstance(values[0], list | tuple):
        return _ids(values[0])
    raise InvalidRequestError(
        f"a list of {len(values)} prompts was given, and an invoke takes one; make one invoke for each: "
        "`for prompt in prompts: with tracer.invoke(prompt): ...`"
        if isinstance(values[0], str | list | tuple | Mapping)
        else f"token ids must be integers, not {type(values[0]).__name__}; {_FORMS}"
    )


def _vocabulary(tokenizer: Any) -> int:
    try:
        return len(tokenizer)
    except TypeError:
        return 0
