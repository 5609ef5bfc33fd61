"""A request for vectors or scores: its inputs in the engine, and its settlement.

It is a ``Generation`` without choices: it generates no tokens, and is listed, ended, settled and
measured as the others are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from engine.client.stream import RequestStream
from engine.errors import EngineDead, QueueFull
from engine.messages import GenerateRequest, RequestOutput
from engine.pooling import PoolingParams
from gateway.admission.admitted import Admitted
from gateway.errors import ApiError, Gone, to_api_error
from gateway.generation.choice import engine_error
from gateway.generation.generation import Generation, Generations, failed_as
from tenants.types import UsageEvent, UsageStatus

AT_ONCE = 256
"""Inputs of one request that are in the engine: enough for its steps, and no more, so that a long
list does not fill its queue."""
_RETRY_S = 0.05


class PooledGeneration(Generation):
    """``begin`` makes it; whoever has it must ``close`` it in a ``finally``."""

    def __init__(self, owner: Generations, admitted: Admitted) -> None:
        super().__init__(owner, admitted, [])
        self._streams: set[RequestStream] = set()
        """Those in the engine."""
        self._num_computed = 0
        """Tokens of the inputs whose results have come."""
        self._is_done = False

    async def results(self) -> list[bytes]:
        """``RequestOutput.pooled`` of each input, in their order. Raises ``ApiError``."""
        prompts = self.admitted.prompts
        found = [b""] * len(prompts)
        # Those of like length together: the engine needs little padding then.
        order = iter(sorted(range(len(prompts)), key=lambda index: len(prompts[index])))
        workers = [
            asyncio.create_task(self._compute(order, found), name=f"pool {self.admitted.id}")
            for _ in range(min(AT_ONCE, len(prompts)))
        ]
        try:
            await asyncio.gather(*workers)
        except ApiError as exc:
            self._failed_as = self._failed_as or failed_as(exc)
            raise
        finally:
            for worker in workers:
                worker.cancel()
        self._is_done = True
        return found

    async def _compute(self, order: Iterator[int], found: list[bytes]) -> None:
        for index in order:
            stream = await self._begin(index)
            try:
                output = [output async for output in stream][-1]
            except EngineDead as exc:
                raise to_api_error(exc) from exc
            found[index] = self._result(stream, output)

    async def _begin(self, index: int) -> RequestStream:
        """Submit an input. While the engine's queue is full, it waits for others of its request."""
        admitted = self.admitted
        while True:
            self._check()
            request = GenerateRequest(
                request_id=f"{admitted.id.hex}-{index}",
                prompt_token_ids=admitted.prompts[index],
                params=admitted.params,
                fair_key=admitted.principal.tenant.id.hex,
                weight=admitted.principal.weight,
                priority=admitted.priority,
                pooling=PoolingParams(second_text=admitted.second_texts[index]),
            )
            try:
                stream = admitted.base.engine.submit(request)
            except (EngineDead, QueueFull) as exc:
                if isinstance(exc, EngineDead) or not self._streams:
                    raise to_api_error(exc) from exc
                await asyncio.sleep(_RETRY_S)
                continue
            self._streams.add(stream)
            return stream

    def _result(self, stream: RequestStream, output: RequestOutput) -> bytes:
        if output.finish_reason == "error":
            raise engine_error(output)
        if output.pooled is None:
            self._check()
            raise Gone("Nobody waited for this any more.", code="stream_abandoned")
        self._take(stream)
        return output.pooled

    def _check(self) -> None:
        """Raise what the request was ended with, if it was."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise Gone("Nobody waited for this any more.", code="stream_abandoned")

    def _take(self, stream: RequestStream) -> None:
        """Count an input whose result has come."""
        self._streams.discard(stream)
        self._num_computed += len(stream.request.prompt_token_ids)

    def _abort(self) -> None:
        for stream in self._streams:
            stream.close()

    async def _finished(self) -> None:
        for stream in list(self._streams):
            await stream.aclose()
            if stream.finish_reason == "stop":  # It came too late for its reader.
                self._take(stream)
            self._streams.discard(stream)

    def _status(self) -> UsageStatus:
        if self._failed_as is not None:
            return self._failed_as
        return "stop" if self._is_done else "cancelled" if self._cancelled else "disconnected"

    async def usage_event(self, status: UsageStatus) -> UsageEvent:
        """The row for the ledger: what was computed is paid for, however the request ended."""
        await self._finished()
        return self._event(status, self._num_computed, 0, 0)


def begin(generations: Generations, admitted: Admitted) -> PooledGeneration:
    """Take over ``admitted.hold``. Nothing is in the engine before ``results`` is called."""
    generation = PooledGeneration(generations, admitted)
    generations.add(generation)
    return generation
