"""What the engine's outputs add to an answer, as text and calls."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.generation.token_logprobs import TokenLogprob
from gateway.parsers.base import ToolCallDelta
from gateway.schemas.common import Compliance


class Delta(msgspec.Struct, gc=False):
    """What was added to one choice since its delta before."""

    index: int
    """The choice's."""
    content: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()
    finish_reason: str | None = None
    """Set in the choice's last delta."""
    stop: str | None = None
    """The stop string that ended the choice; set together with the finish reason."""
    reasoning: str = ""
    logprobs: Sequence[TokenLogprob] = ()
    """Log-probabilities of all tokens that came, even if their text is still held back."""
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None
    """Log-probabilities of the prompt's tokens, in one delta, if asked for; the first token has
    none."""
    compliance: Compliance | None = None
    """Set together with the finish reason, if a schema was not fully enforced."""

    @property
    def is_empty(self) -> bool:
        return not (
            self.content
            or self.finish_reason is not None
            or self.tool_calls
            or self.reasoning
            or self.logprobs
        )
