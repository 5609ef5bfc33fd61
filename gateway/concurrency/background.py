"""Work that goes on beside the requests for as long as the server runs."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gateway.logs import LogThrottle
from tenants.backoff import Backoff
from tenants.outage import OutageLog

logger = logging.getLogger(__name__)

MAX_RESTART_S = 10.0
"""Well within the lease of a reservation, which one piece of work renews."""
STEADY_S = 10.0
"""Work that has run for so long runs again."""
DOWN_S = 60.0
"""Work that fails again and again for so long is down: a restart does not help."""


class Background:
    """Owns one task for each piece of work. One that ends by itself is logged and started again,
    later each time it fails to run steadily. The traceback of each cause is logged once."""

    def __init__(
        self, work: Mapping[str, Callable[[], Awaitable[None]]], *, restart_s: float = 1.0
    ) -> None:
        """work: keyed by the name that its task and log lines have."""
        self._works = [_Work(name, run, restart_s) for name, run in work.items()]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        assert not self._tasks, "started twice"
        self._tasks = [
            asyncio.create_task(work.keep_running(), name=work.name) for work in self._works
        ]

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have cleaned up. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for work, outcome in zip(
            self._works, await asyncio.gather(*tasks, return_exceptions=True), strict=False
        ):
            if isinstance(outcome, Exception):
                logger.error("%s failed while it stopped", work.name, exc_info=outcome)

    @property
    def num_deaths(self) -> Mapping[str, int]:
        """How often each piece of work has ended by itself."""
        return {work.name: work.num_deaths for work in self._works}

    @property
    def down(self) -> Sequence[str]:
        """The work that has not run steadily for ``DOWN_S``."""
        return [work.name for work in self._works if work.is_down]


class _Work:
    def __init__(self, name: str, run: Callable[[], Awaitable[None]], restart_s: float) -> None:
        self.name = name
        self.num_deaths = 0
        self._run = run
        self._backoff = Backoff(restart_s, MAX_RESTART_S)
        self._causes = LogThrottle(burst=1, per_s=0.0)
        self._outage = OutageLog(logger, level=logging.ERROR, clock=_now)
        self._failing_since: float | None = None
        self._steady: asyncio.TimerHandle | None = None

    @property
    def is_down(self) -> bool:
        return self._failing_since is not None and _now() - self._failing_since >= DOWN_S

    async def keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._failing_since is not None:
                self._steady = loop.call_later(STEADY_S, self._recover)
            try:
                await self._run()
                self._died(None)
            except Exception as error:  # the edge of a task
                self._died(error)
            finally:
                if self._steady is not None:
                    self._steady.cancel()
            await asyncio.sleep(self._backoff.next_s())

    def _died(self, error: Exception | None) -> None:
        self.num_deaths += 1
        if self._failing_since is None:
            self._failing_since = _now()
        how = "ended" if error is None else "died"
        if self._causes.admit(_cause_of(error)) is None:
            self._outage.failed("%s %s again; starting it again: %s", self.name, how, error)
        else:
            logger.error("%s %s; starting it again", self.name, how, exc_info=error)

    def _recover(self) -> None:
        self._failing_since = None
        self._backoff.reset()
        self._outage.succeeded("%s runs again", self.name)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _cause_of(error: Exception | None) -> tuple[str, str, int]:
    """What is raised, and where."""
    if error is None:
        return "", "", 0
    frames = traceback.extract_tb(error.__traceback__)
    where = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
    return type(error).__qualname__, *where
