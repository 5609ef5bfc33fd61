"""What makes a request runnable to its end. Refusing it here costs the other requests nothing."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING

from engine.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Collection

    from engine.messages import GenerateRequest
    from engine.sampling_params import SamplingParams
    from engine.vision import Vision


class RequestChecks:
    """The limits of one engine. Every refusal names the field, the limit and the value it got."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_model_len: int,
        max_cached_tokens: int,
        max_logprobs: int,
        pools: bool = False,
        vision: Vision | None = None,
    ) -> None:
        """max_cached_tokens: tokens that the whole KV cache holds. max_logprobs: -1 for no limit.
        pools: the model makes vectors or scores, not text. vision: of a model that sees."""
        self._pools = pools
        self._vision = vision
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_logprobs = max_logprobs
        # The last token of a request is never computed, so it needs no slot.
        self.max_total_tokens = min(max_model_len, max_cached_tokens + 1)
        """Limit of prompt and output together."""

    def check(self, message: GenerateRequest) -> None:
        """Raises ``InvalidRequest`` for a request that could never run to its end."""
        prompt = message.prompt_token_ids
        if not prompt:
            raise InvalidRequest("prompt_token_ids is empty")
        self._check_ids("prompt_token_ids", prompt)
        self._check_images(message)
        if self._pools or message.pooling is not None:
            self._check_pooling(message)
            return
        if message.progress is not None:
            self._check_ids("progress.token_ids", message.progress.token_ids)
            self._check_length(len(prompt) + len(message.progress.token_ids), None)
        self._check_params(message.params)
        _check_terms(message)
        self._check_length(len(prompt), message.params.max_tokens)

    def _check_images(self, message: GenerateRequest) -> None:
        if not message.images:
            return
        if self._vision is None:
            raise InvalidRequest("images: the model does not see; leave them out")
        if self._vision.refusal:
            raise InvalidRequest(f"images: {self._vision.refusal}")
        end = 0
        for index, image in enumerate(message.images):
            try:
                end = self._vision.check(image, message.prompt_token_ids, end)
            except InvalidRequest as error:
                raise InvalidRequest(f"images[{index}].{error}") from None

    def _check_length(self, num_prompt: int, max_tokens: int | None) -> None:
        limit = self.max_total_tokens
        what = "max_model_len" if limit == self._max_model_len else "the size of the KV cache"
        if num_prompt >= limit:
            raise InvalidRequest(
                f"prompt_token_ids has {num_prompt} tokens, but {what} leaves room for"
                f" {limit - 1} and one new token"
            )
        if max_tokens is not None and num_prompt + max_tokens > limit:
            raise InvalidRequest(
                f"max_tokens is {max_tokens}, but after a prompt of {num_prompt} tokens {what}"
                f" leaves room for {limit - num_prompt}"
            )

    def _check_pooling(self, message: GenerateRequest) -> None:
        if not self._pools:
            raise InvalidRequest("pooling is set, but the model generates text")
        if message.pooling is None:
            raise InvalidRequest("pooling must be set: the model generates no text")
        num_prompt, limit = len(message.prompt_token_ids), self._max_model_len
        if num_prompt > limit:
            raise InvalidRequest(
                f"prompt_token_ids has {num_prompt} tokens, but max_model_len is {limit}"
            )
        second = message.pooling.second_text
        if second is not None and not 0 <= second <= num_prompt:
            raise InvalidRequest(f"second_text must be in [0, {num_prompt}], got {second}")
        _check_terms(message)

    def _check_params(self, params: SamplingParams) -> None:
        """What ``SamplingParams`` cannot check by itself."""
        if params.n != 1:
            raise InvalidRequest(f"n must be 1 here, got {params.n}: send a request for each")
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("logit_bias", params.logit_bias or ())
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self._check_ids("bad_words_token_ids", [*chain(*params.bad_words_token_ids)])
        self._check_num_logprobs("logprobs", params.logprobs)
        self._check_num_logprobs("prompt_logprobs", params.prompt_logprobs)
        if params.bad_words and not params.bad_words_token_ids:
            raise InvalidRequest(
                "bad_words must come with bad_words_token_ids: the engine has no tokenizer for them"
            )

    def _check_num_logprobs(self, field: str, number: int | None) -> None:
        asked = self._vocab_size if number == -1 else number or 0
        if 0 <= self._max_logprobs < asked:
            raise InvalidRequest(
                f"{field} is {number}, but max_logprobs allows at most {self._max_logprobs}"
            )

    def _check_ids(self, field: str, token_ids: Collection[int]) -> None:
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= self._vocab_size):
            raise InvalidRequest(
                f"{field} must be in [0, {self._vocab_size}),"
                f" got {min(token_ids)} to {max(token_ids)}"
            )


def _check_terms(message: GenerateRequest) -> None:
    """Check the scheduling terms that the gateway derives from the tenant."""
    num_prompt = len(message.prompt_token_ids)
    if not 0 <= message.num_public_tokens <= num_prompt:
        raise InvalidRequest(
            f"num_public_tokens must be in [0, {num_prompt}], got {message.num_public_tokens}"
        )
    if not (math.isfinite(message.weight) and message.weight > 0):
        raise InvalidRequest(f"weight must be a positive number, got {message.weight}")
    if message.num_granted_tokens is not None and message.num_granted_tokens < 0:
        raise InvalidRequest(
            f"num_granted_tokens must not be below 0, got {message.num_granted_tokens}"
        )
    if min(message.max_cached_blocks.values(), default=0) < 0:
        raise InvalidRequest(
            f"max_cached_blocks must not be below 0, got {message.max_cached_blocks}"
        )
