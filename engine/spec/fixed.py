"""As many drafts as can be: what ``adaptive: false`` asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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

    def observe_rest(
        self, taken: Mapping[int, Sequence[float]], num_tokens: int, num_passed: int = 0
    ) -> None: ...

    def drop(self, request: Request) -> None: ...

    def even_length(self, batch: int, most: int) -> int: ...

    def rest_length(self, batch: int, asked_s: float | None = None, *, overlaps: bool) -> int: ...

    def is_hopeless(self, batch: int) -> bool: ...

    def is_steady(self, step: PlannedStep) -> bool: ...

    @property
    def overlaps(self) -> bool: ...

    def may_wait(self) -> bool: ...

    def probe_length(self, batch: int, most: int) -> int: ...

    def probed(self, asked: Mapping[Request, int]) -> dict[Request, int]: ...

    def lengths(self, found: Mapping[Request, int], batch: int) -> dict[Request, int]: ...

    def may_pay(self, requests: Collection[Request], batch: int) -> bool: ...


class FixedLength:
    """Every draft pays, and nothing is learned."""

    def planned(self, step: PlannedStep) -> None:
        """It does not matter."""

    def observe(
        self, step: PlannedStep, seconds: float, outcomes: Sequence[tuple[str, int, int]]
    ) -> None:
        """Nor does this."""

    def observe_rest(
        self, taken: Mapping[int, Sequence[float]], num_tokens: int, num_passed: int = 0
    ) -> None:
        """Nor does this."""

    def drop(self, request: Request) -> None:
        """Nothing is kept."""

    def even_length(self, batch: int, most: int) -> int:
        return most

    def rest_length(self, batch: int, asked_s: float | None = None, *, overlaps: bool) -> int:
        return 0

    def is_hopeless(self, batch: int) -> bool:
        return False

    def is_steady(self, step: PlannedStep) -> bool:
        return True

    @property
    def overlaps(self) -> bool:
        return False  # Nobody rests.

    def may_wait(self) -> bool:
        return True

    def probe_length(self, batch: int, most: int) -> int:
        return 0

    def probed(self, asked: Mapping[Request, int]) -> dict[Request, int]:
        return {}

    def lengths(self, found: Mapping[Request, int], batch: int) -> dict[Request, int]:
        return dict(found)

    def may_pay(self, requests: Collection[Request], batch: int) -> bool:
        return True
