"""What a request has reserved, dealt out to its answers before the engine generates it.

    hold.allowed ──► a grant for each answer ──► the engine generates up to it, and waits there
         ▲                                                      │
         └──── ask for the next slice, ahead of ◄── advance ◄───┘
               the generation

At every moment the grants of the answers that run, and what the others have generated, are together
not more than ``hold.allowed``. So not one token is generated that is not reserved, however late the
store answers and however many answers share the reservation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from engine.request_stream import RequestStream
from tenants.quota import Hold


class Grants:
    """For one request. Made by ``of``; ``begin`` comes once its streams are there."""

    __slots__ = (
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
        self.slack: float = 0
        """So many tokens may come, of whichever answer, before it is to ``advance`` again. Infinite
        while the store is asked: then no token changes anything."""
        self.on_slack: Callable[[], None] | None = None
        """Told when the store has answered, and ``slack`` is another."""
        self._granted = [0] * num_answers
        self._deal(range(num_answers), hold.allowed)

    @classmethod
    def of(cls, hold: Hold, num_answers: int, max_tokens: int) -> Grants | None:
        """``max_tokens`` is each answer's own. None where all of it is reserved already."""
        if hold.allowed >= num_answers * max_tokens:
            return None
        return cls(hold, num_answers, max_tokens)

    def first(self, index: int) -> int:
        """New tokens that the answer may begin with."""
        return self._granted[index]

    def begin(self, streams: Sequence[RequestStream]) -> None:
        """These are the answers, in their order."""
        assert len(streams) == len(self._granted)
        self._streams = streams
        self._hold.on_more = self._on_more
        self.advance()

    def _on_more(self) -> None:
        self.advance()
        if self.on_slack is not None:
            self.on_slack()

    def advance(self) -> None:
        """Tokens came, or the store answered: grant what is reserved, and ask for more in time."""
        if self._ended:
            return
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
            self._hold.ask(self._hold.slice_tokens * len(needy))
            self.slack = math.inf if self._hold.is_asking else 0
        else:
            self.slack = min(map(self._slack_of, running), default=math.inf)

    def _is_needy(self, index: int) -> bool:
        return self._slack_of(index) <= 0

    def _slack_of(self, index: int) -> float:
        """So many tokens the answer may say before it needs more."""
        granted = self._granted[index]
        if granted >= self._max_tokens:
            return math.inf
        return granted - self._streams[index].num_generated_tokens - self._margin + 1

    def _grant(self, indices: Sequence[int]) -> None:
        """Deal what nobody has to these, and tell the engine."""
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
        """In even parts, to none more than it may have."""
        left = num_tokens
        by_need = sorted(indices, key=lambda i: self._max_tokens - self._granted[i])
        for number, i in enumerate(by_need):
            part = -(-left // (len(by_need) - number))
            part = min(part, self._max_tokens - self._granted[i])
            self._granted[i] += part
            left -= part
