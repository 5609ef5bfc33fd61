"""The log-probabilities a request asked for, from the steps that compute them to its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.messages import TokenLogprobs
    from engine.sampling_params import SamplingParams


class Logprobs:
    """The log-probabilities of one request that are computed and not delivered yet."""

    def __init__(self, params: SamplingParams, num_prompt_tokens: int, has_begun: bool) -> None:
        self._wants_output = params.logprobs is not None
        self._output: list[TokenLogprobs] = []
        self._prompt: list[TokenLogprobs] | None = None
        """Of the prompt's tokens, from the second on; None when not asked for, or delivered."""
        self._num_prompt = 0
        if params.prompt_logprobs is not None and not has_begun:
            self._prompt = []
            self._num_prompt = num_prompt_tokens - 1

    @classmethod
    def asked_for(
        cls, params: SamplingParams, num_prompt_tokens: int, *, has_begun: bool
    ) -> Logprobs | None:
        """None when the parameters ask for neither kind. has_begun: it has generated before, with
        another engine, which has delivered the prompt's."""
        if params.logprobs is None and params.prompt_logprobs is None:
            return None
        return cls(params, num_prompt_tokens, has_begun)

    @property
    def has_prompt(self) -> bool:
        """Whether the prompt's are complete."""
        return self._prompt is None or len(self._prompt) == self._num_prompt

    def add_prompt(self, position: int, found: Sequence[TokenLogprobs]) -> None:
        """Add those of the prompt tokens from ``position`` on. What was known before a preemption
        is kept."""
        if self._prompt is not None:
            known = 1 + len(self._prompt)
            assert position <= known, "log-probabilities of prompt tokens are missing"
            self._prompt += found[known - position :]

    def add(self, found: Sequence[TokenLogprobs]) -> None:
        """Add those of the tokens sampled last."""
        self._output = list(found)

    def take(self, num_tokens: int) -> list[TokenLogprobs] | None:
        """Remove and return those of the first ``num_tokens`` of the tokens sampled last."""
        if not self._wants_output:
            return None
        taken, self._output = self._output[:num_tokens], []
        assert len(taken) == num_tokens, "a token came without its log-probability"
        return taken

    def take_prompt(self) -> list[TokenLogprobs] | None:
        """Those of the whole prompt, once complete; returned only once."""
        if not self.has_prompt:
            return None
        taken, self._prompt = self._prompt, None
        return taken
