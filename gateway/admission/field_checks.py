"""Checks of fields that every kind of chat or completion has. They need nothing but the fields.

Each raises ``InvalidRequestError`` with the field's name.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import ContextLengthExceeded, InvalidRequestError
from gateway.schemas.chat import ChatFields
from gateway.schemas.completions import CompletionRequest
from tenants.errors import InvalidValue
from tenants.names import normalize_name

MAX_CHOICES = 8
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
MAX_CACHE_SALT = 256


def room(num_prompt_tokens: int, max_model_len: int, *, param: str) -> int:
    """The number of tokens left for the answer. Raises ``ContextLengthExceeded`` if it is 0."""
    left = max_model_len - num_prompt_tokens
    if left < 1:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens. However, your "
            f"{param} resulted in {num_prompt_tokens} tokens. Please reduce the length of "
            f"the {param}.",
            param=param,
        )
    return left


def check_fits(max_tokens: int, num_prompt_tokens: int, max_model_len: int, *, param: str) -> None:
    """Raise ``ContextLengthExceeded`` unless so many new tokens fit behind the prompt."""
    total = num_prompt_tokens + max_tokens
    if total > max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {total} tokens ({num_prompt_tokens} in the prompt, {max_tokens} in the "
            "completion). Please reduce either.",
            param=param,
        )


def end_user(fields: ChatFields | CompletionRequest) -> str | None:
    """The client's name for its own user, from either field, the newer one first; None if neither
    is set."""
    name, param = getattr(fields, "safety_identifier", None), "safety_identifier"
    if name is None:
        name, param = fields.user, "user"
    return user_of(name, param=param)


def user_of(name: str | None, *, param: str = "user") -> str | None:
    """The client's name for its own user, checked."""
    if name is None:
        return None
    try:
        return normalize_name("user", name)
    except InvalidValue as exc:
        raise InvalidRequestError(f"It {exc.reason}.", param=param) from None


def check_cache_salt(asked: str | None) -> None:
    if asked is not None and len(asked) > MAX_CACHE_SALT:
        raise InvalidRequestError(f"At most {MAX_CACHE_SALT} characters.", param="cache_salt")


def num_choices(n: int | None) -> int:
    """The number of answers to each prompt."""
    num = 1 if n is None else n
    if not 1 <= num <= MAX_CHOICES:
        raise InvalidRequestError(f"Must be from 1 to {MAX_CHOICES}, got {num}.", param="n")
    return num


def check_best_of(fields: ChatFields | CompletionRequest) -> None:
    if isinstance(fields, CompletionRequest) and fields.best_of not in (None, fields.n or 1):
        raise InvalidRequestError("Must equal n: no answer is thrown away.", param="best_of")


def check_chat(fields: ChatFields | CompletionRequest, max_model_len: int) -> None:
    """What a chat has beside its prompt. Each message has at least one token, so too many need not
    be rendered."""
    if isinstance(fields, CompletionRequest):
        return
    check_metadata(fields.metadata)
    if len(fields.messages) > max_model_len:
        raise ContextLengthExceeded(
            f"There are {len(fields.messages)} messages, but the model takes {max_model_len} "
            "tokens in all.",
            param="messages",
        )


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Check metadata against OpenAI's limits."""
    if metadata is None:
        return
    if len(metadata) > MAX_METADATA:
        raise InvalidRequestError(f"At most {MAX_METADATA} pairs.", param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise InvalidRequestError(
                f"Keys have at most {MAX_METADATA_KEY} characters, values {MAX_METADATA_VALUE}.",
                param=f"metadata.{key[:MAX_METADATA_KEY]}",
            )
