"""Drafts from what a client predicts that the output will be, as of a file that is edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.spec.base import TextProposer
from engine.spec.token_index import TokenIndex, match_length

if TYPE_CHECKING:
    from engine.request import Request

# The output must repeat so many tokens of a prediction to be found in it again.
_MIN_MATCH = 2
# Of several occurrences, the one before which most tokens are the same, up to so many.
_MAX_MATCH = 16
_MAX_CANDIDATES = 16


class PredictedProposer(TextProposer):
    """Copies what follows the output's last tokens in its prediction; the beginning of an output is
    expected to be that of its prediction. Where that finds nothing, another proposer drafts."""

    def __init__(self, other: TextProposer) -> None:
        self._other = other
        self._indexes: dict[Request, TokenIndex] = {}

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        if request.prediction_token_ids and (found := self._predicted(request, max_tokens)):
            return found
        return self._other.continue_text(request, max_tokens)

    def _predicted(self, request: Request, max_tokens: int) -> list[int]:
        prediction, num_prompt = request.prediction_token_ids, request.num_prompt_tokens
        output = request.token_ids[max(num_prompt, len(request.token_ids) - _MAX_MATCH) :]
        if len(output) < _MIN_MATCH:
            is_alike = output == prediction[: len(output)]
            return prediction[len(output) : len(output) + max_tokens] if is_alike else []
        index = self._indexes.get(request)
        if index is None:
            index = self._indexes[request] = TokenIndex(prediction, _MIN_MATCH)
            index.cover(len(prediction))
        best, best_length = 0, _MIN_MATCH - 1
        for end in index.ends(output, _MAX_CANDIDATES):
            length = match_length(prediction, end, output)
            if length > best_length:
                best, best_length = end, length
        return prediction[best : best + max_tokens] if best else []

    def drop(self, request: Request) -> None:
        self._indexes.pop(request, None)
        self._other.drop(request)
