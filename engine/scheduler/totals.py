"""The scheduler's running totals since the engine started."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest

from engine.messages import QUEUE_TIME_BUCKETS_S


@dataclass(slots=True)
class DraftTotals:
    """Counters of speculative decoding, as in vLLM."""

    num_drafts: int = 0
    """Times that a request had drafts checked."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_times_right: list[int] = field(default_factory=lambda: [0])
    """``[n]``: how often exactly n drafts were right; one longer than the most drafts checked."""

    @property
    def num_accepted_tokens_per_pos(self) -> list[int]:
        """``[n]``: how often at least n + 1 drafts were right."""
        return list(accumulate(self.num_times_right[:0:-1]))[::-1]

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        counts = self.num_times_right
        if num_drafts >= len(counts):
            counts += [0] * (num_drafts + 1 - len(counts))
        counts[num_accepted] += 1

    def add(self, other: DraftTotals) -> None:
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        self.num_times_right = [
            sum(counts)
            for counts in zip_longest(self.num_times_right, other.num_times_right, fillvalue=0)
        ]


@dataclass(slots=True)
class SchedulerStats:
    """Running totals."""

    num_steps: int = 0
    num_preemptions: int = 0
    scheduled_tokens: int = 0
    recomputed_tokens: int = 0
    """Of the scheduled tokens, those that had been computed before a preemption."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    queue_time_counts: list[int] = field(
        default_factory=lambda: [0] * (len(QUEUE_TIME_BUCKETS_S) + 1)
    )
    queue_time_sum_s: float = 0.0
    drafts: DraftTotals = field(default_factory=DraftTotals)

    def admit(self, num_prompt_tokens: int, waited_s: float) -> None:
        """Count a request that leaves the queue for the first time, after ``waited_s`` in it."""
        self.prompt_tokens += num_prompt_tokens
        self.queue_time_counts[bisect_left(QUEUE_TIME_BUCKETS_S, waited_s)] += 1
        self.queue_time_sum_s += waited_s
