"""The proposer for draft networks, which the runner runs beside the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.request import Request
    from engine.scheduler.plan import Runner


class NetworkProposer:
    """Passes the question on to ``Runner.draft``. It always proposes something."""

    is_free = False

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def propose(self, asked: Sequence[tuple[Request, int]]) -> list[list[int]]:
        most = max((max_tokens for _, max_tokens in asked), default=0)
        rows = [(request.row, request.num_tokens) for request, _ in asked]
        # A grammar must see the drafts. Other drafts may stay on the device (``UNSEEN``).
        wait = any(request.constrained for request, _ in asked)
        drafts = self._runner.draft(rows, most, wait=wait)
        return [draft[:max_tokens] for draft, (_, max_tokens) in zip(drafts, asked, strict=True)]

    def foresees(self, request: Request) -> bool:
        return True

    def drop(self, request: Request) -> None:
        """Nothing is kept about requests."""
