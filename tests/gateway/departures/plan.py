"""What happens in one example, drawn from a seed."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.gateway.engine_double import Play
from tests.gateway.serving import MODEL, chat_body

Way = Literal["chat", "completions", "responses"]
Manner = Literal["reset", "close", "half", "stall"]
Moment = Literal["never", "in the request", "after a time", "after some bytes"]

GRACE_S = 0.05
"""How long a resumable stream runs without a reader."""
STALL_S = 0.15
"""How long a client may read nothing."""
NEVER_MS = 60_000
"""Before the first token of what nobody waits for."""


@dataclass(frozen=True, kw_only=True)
class Leave:
    """When and how a client goes."""

    moment: Moment
    manner: Manner = "reset"
    share: float = 0.0
    """Of the request, that is sent."""
    after_s: float = 0.0
    after_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One client's doing."""

    number: int
    begins_s: float
    worker: int
    leaves: tuple[Leave, ...]
    """The first visit, and each return to a stream; the last reads to the end."""
    pause_s: float
    """Between leaving and coming back."""
    has_revoked_key: bool
    """Its key may be revoked."""
    length: int
    interval_ms: int
    queued_ms: int

    @property
    def prompt(self) -> str:
        """Says what the engine is to play: ``script`` reads it."""
        return f"#{self.number} {self.length} {self.interval_ms} {self.queued_ms}#"

    @property
    def text(self) -> str:
        """The whole answer."""
        return text_of(self.number, self.length)

    @property
    def num_tokens(self) -> int:
        """Of one answer: a token is a byte."""
        return len(self.text.encode())


@dataclass(frozen=True, kw_only=True)
class HttpVisit(Visit):
    way: Way
    stream: bool
    resumable: bool
    background: bool
    num_choices: int
    idempotency_key: str | None
    ends: Literal["", "stop", "cancel", "delete"]
    """By a second request, which names the stream or the response."""
    ends_after_s: float
    is_pipelined: bool
    """A second request follows at once on the same connection."""

    @property
    def path(self) -> str:
        return {
            "chat": "/v1/chat/completions",
            "completions": "/v1/completions",
            "responses": "/v1/responses",
        }[self.way]

    @property
    def body(self) -> bytes:
        asked: dict[str, Any] = {"stream": self.stream}
        if self.resumable:
            asked["resumable"] = True
        if self.way == "responses":
            asked |= {"model": MODEL, "input": self.prompt}
            if self.background:
                asked["background"] = True
        else:
            asked["n"] = self.num_choices
            if self.stream:
                asked["stream_options"] = {"include_usage": True}
            if self.way == "chat":
                asked = chat_body(self.prompt, **asked)
            else:
                asked |= {"model": MODEL, "prompt": self.prompt, "max_tokens": 4000}
        return json.dumps(asked).encode()


@dataclass(frozen=True, kw_only=True)
class SocketVisit(Visit):
    way: Literal["/v1/chat", "/v1/responses"]
    num_turns: int
    resumable: bool
    cancels_after: int | None
    """So many frames."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    seed: int
    visits: tuple[Visit, ...]
    num_workers: int
    is_uvloop: bool
    late: float
    """Share of the tasks' steps that are put off."""
    store_late_s: float
    """Most that the store takes for an answer."""
    crashes_s: float | None
    revokes_s: float | None
    drains_s: float | None
    """The first worker is told to shut down."""
    max_concurrent: int | None
    is_limited: bool
    flush_interval_ms: int
    max_stream_log_bytes: int

    def may_fail(self, visit: Visit) -> bool:
        """Whether its client may be told of an error that it did not cause."""
        return (
            self.crashes_s is not None
            or (self.drains_s is not None)
            or (self.revokes_s is not None and visit.has_revoked_key)
        )

    @property
    def has_small_log(self) -> bool:
        """Long answers are not kept whole."""
        return self.max_stream_log_bytes < 10**6

    def only(self, numbers: set[int]) -> Plan:
        """With these visits alone."""
        return replace(self, visits=tuple(v for v in self.visits if v.number in numbers))


def text_of(number: int, length: int) -> str:
    """So many tokens, which are bytes: with characters of two."""
    text = "".join(f"{number}.{place} ü " for place in range(length // 6 + 1)).encode()[:length]
    return text.decode(errors="ignore")


def script(prompt: str) -> Play:
    """For the engine double: what a visit's prompt asks for."""
    found = re.search(r"#(\d+) (\d+) (\d+) (\d+)#", prompt)
    if found is None:
        return Play(text="still here")
    number, length, interval_ms, queued_ms = map(int, found.groups())
    return Play(
        text=text_of(number, length), interval_s=interval_ms / 1000, queued_s=queued_ms / 1000
    )


def plan_of(seed: int) -> Plan:
    luck = random.Random(seed)
    visits: list[Visit] = []
    for number in range(luck.choice([1, 2, 3, 5, 8, 12])):
        visit = _visit(luck, number)
        visits.append(visit)
        if isinstance(visit, HttpVisit) and visit.idempotency_key is not None:
            visits += [_copy(luck, visit) for _ in range(luck.choice([0, 1, 1, 3]))]
    return Plan(
        seed=seed,
        visits=tuple(visits),
        num_workers=luck.choice([1, 1, 1, 2]),
        is_uvloop=luck.random() < 0.4,
        late=luck.choice([0.0, 0.1, 0.4, 0.7]),
        store_late_s=luck.choice([0.0, 0.0, 0.002, 0.01]),
        crashes_s=_maybe(luck, 0.2, 0.15),
        revokes_s=_maybe(luck, 0.2, 0.15),
        drains_s=_maybe(luck, 0.15, 0.2),
        max_concurrent=luck.choice([None, None, 2]),
        is_limited=luck.random() < 0.6,
        flush_interval_ms=luck.choice([0, 0, 4]),
        max_stream_log_bytes=luck.choice([10**6, 10**6, 6000]),
    )


def _maybe(luck: random.Random, chance: float, within_s: float) -> float | None:
    return luck.random() * within_s if luck.random() < chance else None


def _visit(luck: random.Random, number: int) -> Visit:
    leaves = [_leave(luck) for _ in range(luck.choice([0, 1, 1, 1, 2, 3]))]
    is_left = len(leaves) == 1 and leaves[0].moment != "after some bytes"
    common: dict[str, Any] = {
        "number": number,
        "begins_s": luck.choice([0.0, 0.0, luck.random() * 0.05, luck.random() * 0.15]),
        "worker": luck.randrange(2),
        "leaves": tuple(leaves),
        "pause_s": luck.choice([0.0, luck.random() * GRACE_S, luck.random() * 3 * GRACE_S]),
        "has_revoked_key": luck.random() < 0.4,
        "length": luck.choice([0, 1, 7, 40, 150, 400]),
        "interval_ms": luck.choice([0, 0, 1, 1, 3]),
        "queued_ms": luck.choice([0, 0, 0, 5, 120]),
    }
    if luck.random() < 0.25:
        return SocketVisit(
            **common,
            way=luck.choice(["/v1/chat", "/v1/responses"]),
            num_turns=luck.choice([1, 1, 2, 4]),
            resumable=luck.random() < 0.5,
            cancels_after=luck.choice([None, None, 0, 1, 3, 10]),
        )
    way: Way = luck.choice(["chat", "completions", "responses"])
    stream = luck.random() < 0.65
    background = way == "responses" and luck.random() < 0.4
    resumable = stream and luck.random() < 0.5
    key = f"key {number}" if luck.random() < 0.35 else None
    if is_left and not (resumable or background or key):  # nobody waits for its end
        common["queued_ms"] = luck.choice([common["queued_ms"], NEVER_MS])
    return HttpVisit(
        **common,
        way=way,
        stream=stream,
        resumable=resumable,
        background=background,
        num_choices=2 if way != "responses" and luck.random() < 0.15 else 1,
        idempotency_key=key,
        ends=luck.choice(["", "", "", "stop", "cancel", "delete"]),
        ends_after_s=luck.random() * 0.05,
        is_pipelined=luck.random() < 0.1,
    )


def _copy(luck: random.Random, visit: HttpVisit) -> HttpVisit:
    """The same request, of a client that does not know whether the first has arrived."""
    return replace(
        visit,
        begins_s=visit.begins_s + luck.choice([0.0, luck.random() * 0.01, luck.random() * 0.2]),
        worker=luck.randrange(2),
        leaves=tuple(_leave(luck) for _ in range(luck.choice([0, 1]))),
        ends="",
    )


def _leave(luck: random.Random) -> Leave:
    moment: Moment = luck.choice(
        ["in the request", "after a time", "after a time", "after some bytes", "after some bytes"]
    )
    return Leave(
        moment=moment,
        manner=luck.choice(["reset", "reset", "close", "half", "stall"]),
        share=luck.random(),
        after_s=luck.choice([0.0, luck.random() * 0.01, luck.random() * 0.05, luck.random() * 0.2]),
        after_bytes=luck.choice([0, 1, luck.randrange(1000), luck.randrange(10_000)]),
    )
