"""Which adapters requests may name. Their files are read beside the loop, and kept while needed.

    LoadAdapter ───────► read in a thread ──► in memory ──► put away, least recently used first
    GenerateRequest ──►                           │
                                                  └► unloaded: no new users, gone with the last

A request brings all that is needed to read its adapter. So it does not matter whether the engine
was restarted, or has put the adapter away: the request is held here until the adapter is in memory,
and is its user from then on.
"""

from __future__ import annotations

import logging
import queue
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from engine.errors import AdapterLoadError, AdapterUnloaded, InvalidRequest
from engine.messages import AdapterRef, GenerateRequest, Grant

logger = logging.getLogger(__name__)

MAX_UNLOADED = 10_000
"""The most names of unloaded adapters that are remembered, the latest."""


class LoadedAdapter(Protocol):
    """What the core needs of ``engine.lora.adapter.Adapter``: weights in host memory, already
    checked."""

    @property
    def rank(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def base_model(self) -> str | None: ...


class AdapterMemory(Protocol):
    """What the core needs of ``engine.lora.slots.AdapterSlots``. Only ``read`` may be called from
    another thread."""

    @property
    def num_swaps(self) -> int: ...

    def read(self, folder: Path) -> LoadedAdapter:
        """Raises ``AdapterLoadError``."""

    def keep(self, name: str, adapter: Any) -> None:
        """Accept an adapter that ``read`` returned."""

    def drop(self, name: str) -> None: ...


OnLoaded = Callable[[LoadedAdapter | AdapterLoadError], None]


class Released(NamedTuple):
    """A request that waited for its adapter, and how that ended."""

    request: GenerateRequest
    grants: list[Grant]
    """What it was granted meanwhile: the latest one, or none."""
    outcome: str | AdapterLoadError
    """The digest of its adapter, which it is a user of from now on; or why there is none."""


@dataclass(slots=True, eq=False)
class _Entry:
    """An adapter that is in memory, or being read."""

    ref: AdapterRef
    adapter: LoadedAdapter | None = None
    """None while it is read."""
    num_users: int = 0
    unloaded: bool = False
    held: dict[str, tuple[GenerateRequest, list[Grant]]] = field(default_factory=dict)
    """By their ids: the requests that wait for it, and their latest grant, if any."""
    callers: list[OnLoaded] = field(default_factory=list)


class Adapters:
    """Only the engine's step loop may call these methods."""

    def __init__(
        self,
        memory: AdapterMemory,
        *,
        max_cpu_loras: int | None = None,
        reader: Executor | None = None,
    ) -> None:
        """max_cpu_loras: adapters kept in memory while no request uses them; None keeps all.
        reader: executor that runs ``memory.read``; by default one thread, so one file after the
        other."""
        self._memory = memory
        self._max_in_memory = max_cpu_loras
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """By name, the most recently used last."""
        self._held: dict[str, _Entry] = {}
        """By the id of the request that waits for the adapter."""
        self._unloaded: dict[str, None] = {}
        """Names that were unloaded, the latest last: clients that do not know it yet may still send
        requests for them."""
        self._reader = reader or ThreadPoolExecutor(1, thread_name_prefix="adapters")
        self._reads: queue.SimpleQueue[tuple[_Entry, Future[LoadedAdapter]]] = queue.SimpleQueue()
        self._num_reading = 0
        self.num_reads = 0

    @property
    def is_reading(self) -> bool:
        """Whether ``arrived`` has something to wait for."""
        return self._num_reading > 0

    @property
    def num_held(self) -> int:
        """Requests that wait for their adapter."""
        return len(self._held)

    @property
    def num_in_memory(self) -> int:
        return sum(entry.adapter is not None for entry in self._entries.values())

    @property
    def num_users(self) -> int:
        return sum(entry.num_users for entry in self._entries.values())

    @property
    def num_swaps(self) -> int:
        """How often an adapter was copied into a slot on the device."""
        return self._memory.num_swaps

    # ---- adapters come and go -------------------------------------------------------------------

    def load(self, ref: AdapterRef, on_done: OnLoaded) -> None:
        """Start reading an adapter. ``on_done`` is called with the outcome, here or from within
        ``arrived``."""
        entry = self._entries.get(ref.name)
        if entry is None:
            self._unloaded.pop(ref.name, None)
            self._read(ref).callers.append(on_done)
        elif (obstacle := _obstacle(entry, ref)) is not None:
            on_done(AdapterLoadError(obstacle))
        elif entry.adapter is not None:
            on_done(entry.adapter)
        else:
            entry.callers.append(on_done)

    def unload(self, name: str) -> None:
        """Refuse new requests for it; those that use it go on to their end."""
        self._unloaded.pop(name, None)
        self._unloaded[name] = None
        if len(self._unloaded) > MAX_UNLOADED:
            del self._unloaded[next(iter(self._unloaded))]
        entry = self._entries.get(name)
        if entry is not None:
            entry.unloaded = True
            self._forget_unloaded(entry)

    # ---- requests come and go -------------------------------------------------------------------

    def admit(self, request: GenerateRequest) -> str | None:
        """The digest of the request's adapter, which it is a user of until ``release``.

        None if the adapter has to be read first: then the request is held until ``arrived`` hands
        it out. Raises ``AdapterUnloaded``, ``InvalidRequest``.
        """
        ref = request.adapter
        assert ref is not None
        is_unloaded = ref.name in self._unloaded
        is_moved = request.progress is not None  # It runs already, and goes on to its end.
        if is_unloaded and not is_moved:
            raise AdapterUnloaded(f"adapter {ref.name!r} is not loaded any more")
        entry = self._entries.get(ref.name)
        if entry is None:
            entry = self._read(ref)
            entry.unloaded = is_unloaded
        elif (obstacle := _obstacle(entry, ref, is_moved=is_moved)) is not None:
            raise InvalidRequest(obstacle)
        if entry.adapter is None:
            entry.held[request.request_id] = request, []
            self._held[request.request_id] = entry
            return None
        self._entries.move_to_end(ref.name)
        entry.num_users += 1
        return entry.adapter.digest

    def release(self, name: str) -> None:
        """A request that used the adapter has ended."""
        entry = self._entries[name]
        entry.num_users -= 1
        assert entry.num_users >= 0, f"adapter {name!r} was released too often"
        self._forget_unloaded(entry)
        self._trim()

    def holds(self, request_id: str) -> bool:
        return request_id in self._held

    def grant(self, grant: Grant) -> None:
        """Keep a grant for the request that it is for, if that is held."""
        if (entry := self._held.get(grant.request_id)) is not None:
            entry.held[grant.request_id][1][:] = [grant]

    def discard(self, request_id: str) -> None:
        """Forget a held request."""
        del self._held.pop(request_id).held[request_id]

    def released(self, *, wait_s: float = 0.0) -> list[Released]:
        """Requests whose adapters have been read since the last call; waits up to ``wait_s`` for
        the first."""
        released: list[Released] = []
        while self._num_reading:
            try:
                entry, future = self._reads.get(wait_s > 0, wait_s or None)
            except queue.Empty:
                break
            self._num_reading -= 1
            wait_s = 0.0
            released += self._end_read(entry, future)
            self._trim()
        return released

    # ---- reading --------------------------------------------------------------------------------

    def _read(self, ref: AdapterRef) -> _Entry:
        entry = self._entries[ref.name] = _Entry(ref)
        future = self._reader.submit(self._memory.read, Path(ref.path))
        future.add_done_callback(lambda done: self._reads.put((entry, done)))
        self._num_reading += 1
        self.num_reads += 1
        return entry

    def _end_read(self, entry: _Entry, future: Future[LoadedAdapter]) -> list[Released]:
        requests = list(entry.held.values())
        for request, _ in requests:
            self.discard(request.request_id)
        result = _result(entry, future)
        if isinstance(result, AdapterLoadError):
            if requests:
                logger.error("requests for adapter %s fail: %s", entry.ref.name, result)
            del self._entries[entry.ref.name]
        else:
            entry.adapter = result
            entry.num_users = len(requests)
            self._memory.keep(entry.ref.name, result)
            self._forget_unloaded(entry)
        for on_done in entry.callers:
            on_done(result)
        entry.callers.clear()
        outcome = result if isinstance(result, AdapterLoadError) else result.digest
        return [Released(request, grants, outcome) for request, grants in requests]

    # ---- memory ---------------------------------------------------------------------------------

    def _forget_unloaded(self, entry: _Entry) -> None:
        if entry.unloaded and entry.adapter is not None and entry.num_users == 0:
            self._put_away(entry)

    def _trim(self) -> None:
        """Drop the least recently used adapters that no request needs, down to the limit."""
        if self._max_in_memory is None:
            return
        num_spare = self.num_in_memory - self._max_in_memory
        for entry in list(self._entries.values()):
            if num_spare <= 0:
                return
            if entry.adapter is not None and entry.num_users == 0:
                self._put_away(entry)
                num_spare -= 1

    def _put_away(self, entry: _Entry) -> None:
        self._memory.drop(entry.ref.name)
        del self._entries[entry.ref.name]


def _obstacle(entry: _Entry, ref: AdapterRef, *, is_moved: bool = False) -> str | None:
    """Why the adapter known under this name cannot be the one asked for; None if it can."""
    if entry.unloaded and not is_moved:
        return f"adapter {ref.name!r} was unloaded, and {entry.num_users} requests still use it"
    digest = entry.ref.digest if entry.adapter is None else entry.adapter.digest
    if ref.path != entry.ref.path or (ref.digest and digest and ref.digest != digest):
        return f"adapter {ref.name!r} is loaded already, from {entry.ref.path}: unload it first"
    return None


def _result(entry: _Entry, future: Future[LoadedAdapter]) -> LoadedAdapter | AdapterLoadError:
    try:
        adapter = future.result()
    except AdapterLoadError as error:
        return error
    except Exception as error:  # whatever is in a file, the engine goes on
        logger.error("an adapter cannot be read", exc_info=error)
        return AdapterLoadError(f"{entry.ref.path}: {type(error).__name__}: {error}")
    if entry.ref.digest and adapter.digest != entry.ref.digest:
        return AdapterLoadError(
            f"{entry.ref.path} is not what was loaded: unload the adapter and load it again"
        )
    return adapter
