"""Which drafts stay: a sampling law that no draft can change.

The textbook method (Leviathan et al., arXiv 2211.17192) accepts a draft d, proposed with
probability q(d), with probability min(1, p(d) / q(d)), and else draws from max(0, p - q). Its
output has the law of p, but what a seed gives depends on what was drafted.

Here the target draws its own token x at every place, from the processed distribution p of that
place, as it does without drafts: Gumbel argmax with noise that only (seed, position) decides. A
draft is accepted if and only if it is that token. Then

* the output does not have the law of plain sampling alone, it *is* the output of plain sampling,
  for every seed, any number of drafts and every proposer;
* a draft that does not depend on the noise is accepted with probability p(d): what the textbook
  gives for a draft of one token, q(d) = 1;
* a drafter with a distribution q of its own draws with the same noise. Then both draw the same
  token with probability (1 - tv) / (1 + tv) at least, where tv is the total variation distance of
  p and q (Daliri et al., "Coupling without Communication and Drafter-Invariant Speculative
  Decoding", arXiv 2408.07978). The most that any method can reach is 1 - tv.

The price is that little between the last two; what it buys is that speculation cannot be told from
its absence.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.scheduler.plan import Chunk


def accept(chunk: Chunk, drawn: list[int]) -> list[int]:
    """``drawn`` up to the first place where it differs from the chunk's draft, that included.

    drawn: what the target drew at each place; the draft for the first place is the first.
    """
    for count, (draft, token_id) in enumerate(zip(chunk.draft_token_ids, drawn, strict=False), 1):
        if draft != token_id:
            return drawn[:count]
    return drawn


class SyntheticAcceptance:
    """In place of ``accept``: drafts stay by chance. For measuring speed, not for use."""

    def __init__(self, rates: Sequence[float]) -> None:
        """rates: for each place, how often all drafts up to it stay."""
        self._rates = rates
        self._rng = random.Random(0)

    def __call__(self, chunk: Chunk, drawn: list[int]) -> list[int]:
        chance = self._rng.random()
        rates = self._rates[: chunk.num_draft_tokens]
        return drawn[: 1 + sum(chance < rate for rate in rates)]
