"""What a request makes the model read."""

from __future__ import annotations

from typing import NamedTuple

from gateway.schemas.chat import Picture


class Echo(NamedTuple):
    """A prompt as it is repeated before an answer, if the request sets ``echo``."""

    text: str = ""
    first_token: str = ""
    """With log-probabilities, the text of the prompt's first token, which has none."""


class Prompt(NamedTuple):
    token_ids: list[list[int]]
    """Chats have one list, text completions may have several."""
    is_chat: bool = True
    begins_reasoning: bool = False
    """Whether a chat's prompt ends with the tag that opens reasoning."""
    ends_reasoning: bool = False
    """Whether a chat's prompt ends with the tag that closes reasoning: the answer will have
    none."""
    echoes: list[Echo] = []  # noqa: RUF012 (never changed)
    """For each prompt of a text completion."""
    pictures: list[Picture] = []  # noqa: RUF012 (never changed)
    """Of a chat, in the order of its messages."""
    places: list[int] = []  # noqa: RUF012 (never changed)
    """Of each picture, the index of its first token."""
