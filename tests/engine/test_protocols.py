"""Engines and gateways of two adjacent versions work together."""

from __future__ import annotations

import os
import signal
import sys

import msgspec
import pytest

from engine import process, sockets
from engine.client import attached, transport
from engine.messages import PROTOCOL
from tests.engine import stand_in
from tests.engine.client.test_fleet import begun, expected, fleet_of, read, request
from tests.engine.protocols import Words, present, recorded, structs

LAST = PROTOCOL - 1


def test_the_present_protocol_is_recorded() -> None:
    """If a version with this number was released, first count ``PROTOCOL`` up; then record it."""
    assert recorded(PROTOCOL) == present(), "run python -m tests.engine.protocols"


def test_the_last_protocol_is_a_part_of_it() -> None:
    """What is new has a default, and comes last where fields have no names."""
    last = recorded(LAST)
    for kind in structs():
        if (known := last.get(kind.__name__)) is None:
            continue
        required = {field.name for field in msgspec.structs.fields(kind) if field.required}
        assert required <= set(known), kind
        if kind.__struct_config__.array_like:
            assert list(kind.__struct_fields__[: len(known)]) == known, kind


@pytest.fixture(params=["an engine", "a gateway"])
def last_one(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One side speaks the last protocol."""
    if request.param == "an engine":
        monkeypatch.setattr(stand_in.StandInProcess, "module", "tests.engine.test_protocols")
    else:
        for name, word in Words(LAST).exports():
            for module in (transport, attached):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, word)
    param: str = request.param
    return param


@pytest.mark.asyncio
async def test_streams_flow_and_move_between_two_versions(last_one: str) -> None:
    async with fleet_of(2) as fleet:
        streams = [
            fleet.submit(request(str(i), 10 * i, 300, num_granted_tokens=100)) for i in range(6)
        ]
        first = await begun(*streams)
        for stream in streams:
            stream.grant(300, is_last=True)
        os.kill(fleet.engines[0].info.pid, signal.SIGKILL)
        for i, (output, stream) in enumerate(zip(first, streams, strict=True)):
            assert output.new_token_ids + await read(stream) == expected(10 * i, 300)
        stats = await fleet.engines[1].fetch_stats()
        assert stats.generation_tokens > 0
        assert fleet.moves.num_moved == 3


if __name__ == "__main__":  # An engine of the last version.
    for name, word in Words(LAST).exports():
        for module in (process, sockets):
            if hasattr(module, name):
                setattr(module, name, word)
    sys.exit(process.main(stand_in.build))
