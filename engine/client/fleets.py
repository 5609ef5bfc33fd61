"""The engines of all models that a gateway serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

from engine.client.client import EngineClient
from engine.client.fleet import EngineState, Fleet, OnTokens


class Fleets(Mapping[str, Fleet]):
    """A ``Fleet`` for each model, by its name; the default model's is the first. Names of engines
    are unique over all of them. Call its methods only on the event loop that called ``start``."""

    def __init__(self, by_model: Mapping[str, Fleet]) -> None:
        self._by_model = dict(by_model)

    def __getitem__(self, model: str) -> Fleet:
        return self._by_model[model]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_model)

    def __len__(self) -> int:
        return len(self._by_model)

    async def start(self) -> None:
        """Start the engines, and wait until all models are served whose engines run on this host;
        if there are none, until one model is. Raises as ``Fleet.start`` does; then ``close`` ends
        the others."""
        starting = {asyncio.create_task(fleet.start()): fleet for fleet in self.values()}
        try:
            awaited = [task for task, fleet in starting.items() if fleet.engines]
            if awaited:
                await asyncio.gather(*awaited)
            else:
                await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    async def close(self) -> None:
        """As ``Fleet.close``. Idempotent."""
        await asyncio.gather(*(fleet.close() for fleet in self.values()))

    def observe(
        self, *, around_outputs: AbstractContextManager[object], on_tokens: OnTokens
    ) -> None:
        """As ``Fleet.observe``."""
        for fleet in self.values():
            fleet.observe(around_outputs=around_outputs, on_tokens=on_tokens)

    def retire(self, name: str, epoch: int) -> None:
        """As ``EngineClient.retire``, of the engine of this name."""
        for engine in self.engines:
            if engine.name == name:
                engine.retire(epoch)

    def learn(self, name: str, epoch: int, *, was_killed: bool) -> None:
        """As ``Moves.learn``, of the engine of this name."""
        for fleet in self.values():
            for engine in fleet.engines:
                if engine.name == name:
                    fleet.moves.learn(engine, epoch, was_killed=was_killed)

    @property
    def ready(self) -> bool:
        """Whether requests for any model are served."""
        return any(fleet.ready for fleet in self.values())

    @property
    def engines(self) -> list[EngineClient]:
        return [engine for fleet in self.values() for engine in fleet.engines]

    @property
    def states(self) -> dict[str, EngineState]:
        """Of each engine, by its name."""
        return {
            engine.name: fleet.state_of(engine)
            for fleet in self.values()
            for engine in fleet.engines
        }

    @property
    def num_streams(self) -> int:
        """Requests of this process that have not ended."""
        return sum(fleet.num_streams for fleet in self.values())
