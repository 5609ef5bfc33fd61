"""Divides the tokens that a request has reserved among its answers, before they are generated.

    hold.allowed ──► a grant for each answer ──► the engine generates up to it, and waits there
         ▲                                                      │
         └──── ask for the next slice, ahead of ◄── advance ◄───┘
               the generation

At every moment, the grants of the running answers and the tokens of the finished ones are together
at most ``hold.allowed``. So no token is generated that is not reserved, however late the store
answers and however many answers share the reservation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from engine.client.stream import RequestStream
from tenants.quota import Hold


class Grants:
    """The grants of one request. Make it by ``of``; call ``begin`` when all answers are submitted.

    Indices are those of the answers. All counts are of generated tokens, the prompt's not included.
    """

    __slots__ = (
        "_began_at",
        "_ended",
        "_granted",
        "_hold",
        "_margin",
        "_max_tokens",
        "_streams",
        "on_slack",
        "slack",
    )

    def __init__(self, hold: Hold, num_answers: int, max_tokens: int) -> None:
        self._hold = hold
        self._max_tokens = max_tokens
        self._margin = hold.slice_tokens // 2
        self._streams: Sequence[RequestStream] = ()
        self._ended = False
        self._began_at = 0.0
        """When the first tokens came, in seconds of ``time.monotonic``; 0 before."""
        self.slack: float = 0
        """How many more tokens may come, of any answers, before ``advance`` must be called again.
        Infinite while the store is asked, because nothing can be granted until it answers."""
        self.on_slack: Callable[[], None] | None = None
        """Called when the store has answered, which changes ``slack``."""
        self._granted = [0] * num_answers
        self._deal(range(num_answers), hold.allowed)

    @classmethod
    def of(cls, hold: Hold, num_answers: int, max_tokens: int) -> Grants | None:
        """The grants under a reservation; None if it covers ``max_tokens`` of each answer already,
        so that nothing need be granted later."""
        if hold.allowed >= num_answers * max_tokens:
            return None
        return cls(hold, num_answers, max_tokens)

    def first(self, index: int) -> int:
        """How many tokens an answer may generate at first."""
        return self._granted[index]

    def begin(self, streams: Sequence[RequestStream]) -> None:
        """Set the streams of all answers, in the order of their indices."""
        assert len(streams) == len(self._granted)
        self._streams = streams
        self._hold.on_more = self._on_more
        self.advance()

    def _on_more(self) -> None:
        self.advance()
        if self.on_slack is not None:
            self.on_slack()

    def advance(self) -> None:
        """Grant what is reserved, and ask for more in time. To be called when ``slack`` more tokens
        have come, and when the store has answered."""
        if self._ended:
            return
        if not self._began_at and any(stream.num_generated_tokens for stream in self._streams):
            self._began_at = time.monotonic()
        running = [i for i, stream in enumerate(self._streams) if stream.finish_reason is None]
        if self._hold.is_last:
            self._ended = True
            self.slack = math.inf
            self._grant([i for i in running if self._granted[i] < self._max_tokens])
            return
        if needy := [i for i in running if self._is_needy(i)]:
            self._grant(needy)
            needy = [i for i in needy if self._is_needy(i)]
        if needy:
            tokens = self._hold.slice_tokens * len(needy)
            self._hold.ask(tokens, patience_s=self._patience_s(running))
            self.slack = math.inf if self._hold.is_asking else 0
        else:
            self.slack = min(map(self._slack_of, running), default=math.inf)

    def _patience_s(self, running: Sequence[int]) -> float:
        """The seconds until the first of these answers has used up its grant, at its average speed
        so far."""
        elapsed_s = time.monotonic() - self._began_at
        return min(
            elapsed_s * (self._granted[i] / self._streams[i].num_generated_tokens - 1)
            if self._streams[i].num_generated_tokens
            else 0.0
            for i in running
        )

    def _is_needy(self, index: int) -> bool:
        return self._slack_of(index) <= 0

    def _slack_of(self, index: int) -> float:
        """How many tokens an answer may generate before it needs another grant."""
        granted = self._granted[index]
        if granted >= self._max_tokens:
            return math.inf
        return granted - self._streams[index].num_generated_tokens - self._margin + 1

    def _grant(self, indices: Sequence[int]) -> None:
        """Divide what is not granted yet among these answers, and tell the engine."""
        before = [self._granted[i] for i in indices]
        self._deal(indices, self._hold.allowed - self._num_dealt())
        for i, old in zip(indices, before, strict=True):
            if self._granted[i] > old or self._ended:
                self._streams[i].grant(self._granted[i], is_last=self._ended)

    def _num_dealt(self) -> int:
        return sum(
            granted if stream.finish_reason is None else stream.num_generated_tokens
            for granted, stream in zip(self._granted, self._streams, strict=True)
        )

    def _deal(self, indices: Sequence[int], num_tokens: int) -> None:
        """Divide tokens evenly among these answers, but give none more than ``max_tokens``."""
        left = num_tokens
        by_need = sorted(indices, key=lambda i: self._max_tokens - self._granted[i])
        for number, i in enumerate(by_need):
            part = -(-left // (len(by_need) - number))
            part = min(part, self._max_tokens - self._granted[i])
            self._granted[i] += part
            left -= part
