"""A pool of threads that works for all tenants in turn."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from uuid import UUID

T = TypeVar("T")


class FairThreads:
    """Each thread takes the next piece of the tenant that has waited longest for its turn, so a
    tenant's piece waits for those that run and for one of each other tenant. A thread needs no word
    of the event loop to go on, which may be busy with a step of a thousand streams."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._waiting: OrderedDict[UUID, deque[tuple[Future[Any], Callable[[], Any]]]]
        self._waiting = OrderedDict()

    def submit(self, tenant: UUID, work: Callable[[], T]) -> Future[T]:
        future = Future[T]()
        with self._lock:
            self._waiting.setdefault(tenant, deque()).append((future, work))
        self._pool.submit(self._run_next)
        return future

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    def _run_next(self) -> None:
        with self._lock:
            tenant, waiting = next(iter(self._waiting.items()))
            future, work = waiting.popleft()
            if waiting:
                self._waiting.move_to_end(tenant)
            else:
                del self._waiting[tenant]
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # its caller's
            future.set_exception(error)
            del future  # The error refers to this frame: no cycle is left to the collector.
