"""A fixed number of drafts: what ``adaptive: false`` in ``speculative_config`` asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from engine.spec.rest import LONGEST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from engine.request import Request
    from engine.spec.planned_step import PlannedStep


class DraftLength(Protocol):
    """Decides how many drafts each request gets; ``AdaptiveLength`` says what the methods mean."""

    def planned(self, step: PlannedStep) -> None: ...

    def observe(
        self, step: PlannedStep, seconds: float, outcomes: Sequence[tuple[str, int, int]]
    ) -> None: ...

    def observe_streak(self, outcomes: Sequence[tuple[str, int, int]]) -> None: ...

    def observe_rest(
        self,
        taken: Mapping[int, Sequence[float]],
        num_tokens: Mapping[int, int],
        num_passed: int = 0,
    ) -> None: ...

    def admitted_in_rest(self, number: int, batch: int) -> None: ...

    def drop(self, request: Request) -> None: ...

    def end(self, number: int) -> None: ...

    def uniform_length(self, batch: int, most: int) -> int: ...

    def rest_length(self, batch: int, asked_s: float | None = None, *, overlaps: bool) -> int: ...

    def hopeless_length(self, batch: int) -> int: ...

    def num_steps_to_probe(self, batch: int, most: int) -> int: ...

    def steady_length(self, batch: int, most: int) -> int: ...

    @property
    def overlaps(self) -> bool: ...

    def may_wait(self) -> bool: ...

    def probe_length(self, batch: int, most: int) -> int: ...

    @property
    def is_probing(self) -> bool: ...

    def probed(self, asked: Mapping[Request, int]) -> dict[Request, int]: ...

    def lengths(self, found: Mapping[Request, int], batch: int) -> dict[Request, int]: ...

    def may_pay(self, requests: Collection[Request], batch: int) -> bool: ...


class FixedLength:
    """Always as many drafts as allowed; learns nothing."""

    def planned(self, step: PlannedStep) -> None:
        """Nothing to learn."""

    def observe(
        self, step: PlannedStep, seconds: float, outcomes: Sequence[tuple[str, int, int]]
    ) -> None:
        """Nothing to learn."""

    def observe_streak(self, outcomes: Sequence[tuple[str, int, int]]) -> None:
        """Nothing to learn."""

    def observe_rest(
        self,
        taken: Mapping[int, Sequence[float]],
        num_tokens: Mapping[int, int],
        num_passed: int = 0,
    ) -> None:
        """Nothing to learn."""

    def admitted_in_rest(self, number: int, batch: int) -> None:
        """There are no rests."""

    def drop(self, request: Request) -> None:
        """Nothing is kept about requests."""

    def end(self, number: int) -> None:
        """Nothing to learn."""

    def uniform_length(self, batch: int, most: int) -> int:
        return most

    def rest_length(self, batch: int, asked_s: float | None = None, *, overlaps: bool) -> int:
        return 0

    def hopeless_length(self, batch: int) -> int:
        return 0

    def num_steps_to_probe(self, batch: int, most: int) -> int:
        return LONGEST

    def steady_length(self, batch: int, most: int) -> int:
        return self.uniform_length(batch, most)

    @property
    def overlaps(self) -> bool:
        return False  # There are no rests.

    def may_wait(self) -> bool:
        return True

    def probe_length(self, batch: int, most: int) -> int:
        return 0

    @property
    def is_probing(self) -> bool:
        return False

    def probed(self, asked: Mapping[Request, int]) -> dict[Request, int]:
        return {}

    def lengths(self, found: Mapping[Request, int], batch: int) -> dict[Request, int]:
        return dict(found)

    def may_pay(self, requests: Collection[Request], batch: int) -> bool:
        return True
