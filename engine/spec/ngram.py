"""Prompt lookup (vLLM's ``ngram``): what followed the last few tokens before follows again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.spec.base import TextProposer
from engine.spec.token_index import TokenIndex, match_length

if TYPE_CHECKING:
    from engine.request import Request

# Occurrences compared at most; the latest are the likeliest to be of use.
_MAX_CANDIDATES = 16


class NgramProposer(TextProposer):
    """Copies what followed the longest earlier occurrence of a request's last tokens.

    Of equally long ones the latest counts. A copy that reaches the end of the known tokens goes on
    with itself, as in LZ77, so that a loop is drafted to any length.
    """

    def __init__(self, min_length: int, max_length: int) -> None:
        """``prompt_lookup_min`` and ``prompt_lookup_max``."""
        self._min_length = min_length
        self._max_length = max_length
        self._indexes: dict[Request, TokenIndex] = {}

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        token_ids = request.token_ids
        index = self._indexes.get(request)
        if index is None:
            index = self._indexes[request] = TokenIndex(token_ids, self._min_length)
        index.cover(len(token_ids) - 1)
        suffix = token_ids[-self._max_length :]
        best, best_length = 0, self._min_length - 1
        for end in index.ends(suffix, _MAX_CANDIDATES):
            length = match_length(token_ids, end, suffix)
            if length > best_length:
                best, best_length = end, length
                if length == len(suffix):
                    break
        return copy_from(token_ids, best, max_tokens) if best else []

    def drop(self, request: Request) -> None:
        self._indexes.pop(request, None)


def copy_from(token_ids: list[int], start: int, num_tokens: int) -> list[int]:
    """What follows ``token_ids`` if it repeats itself from ``start``, before its end, on."""
    period = len(token_ids) - start
    assert period > 0
    copied = token_ids[start : start + num_tokens]
    while len(copied) < num_tokens:
        copied.append(copied[-period])
    return copied
