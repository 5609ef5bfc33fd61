"""What the engine's client tells of a step beside its outputs: no engine is needed for that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import pytest

import engine.client.client
from engine.client.client import BURST, EngineClient
from engine.client.stream import RequestStream
from engine.config import EngineConfig
from engine.messages import GenerateRequest, RequestOutput, StepOutputs
from engine.sampling_params import SamplingParams


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def request(name: str) -> GenerateRequest:
    return GenerateRequest(request_id=name, prompt_token_ids=[1], params=SamplingParams())


def client_of(num_streams: int) -> EngineClient:
    client = EngineClient(EngineConfig(model="none"))
    client._streams = {str(i): RequestStream(client, request(str(i))) for i in range(num_streams)}
    return client


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(engine.client.client, "time", clock)
    return clock


def step(*outputs: tuple[str, int]) -> StepOutputs:
    return StepOutputs([RequestOutput(request_id, [7] * count) for request_id, count in outputs])


def test_each_token_but_those_of_the_first_output_is_told_of(clock: Clock) -> None:
    client = client_of(2)
    told: list[tuple[float, Sequence[float]]] = []
    client.on_tokens = lambda now, since: told.append((now, list(since)))
    for elapsed_s, outputs in (
        (0.0, [("0", 1)]),
        (1.0, [("0", 1), ("1", 2)]),
        (2.0, [("0", 4), ("1", 1)]),  # drafts: four tokens came together
        (1.0, [("1", 0)]),
        (1.0, [("1", 1)]),
    ):
        clock.now += elapsed_s
        client._on_message(step(*outputs))
    assert told == [
        (100.0, []),
        (101.0, [100.0]),
        (103.0, [102.5] * 4 + [101.0]),
        (104.0, []),
        (105.0, [103.0]),
    ]


def test_outputs_are_delivered_in_bursts(clock: Clock) -> None:
    heard: list[str] = []
    client = client_of(2 * BURST + 1)

    class Around(contextlib.AbstractContextManager[None]):
        def __enter__(self) -> None:
            heard.append("begin")

        def __exit__(self, *reason: object) -> None:
            heard.append("end")

    def hear(name: str) -> Callable[[int], None]:
        return lambda _: heard.append(name)

    for name, stream in client._streams.items():
        stream.on_count = hear(name)
    client.around_outputs = Around()
    client._on_message(step(*((name, 1) for name in client._streams)))
    names = list(map(str, range(2 * BURST + 1)))
    assert heard == [
        *("begin", *names[:BURST], "end"),
        *("begin", *names[BURST : 2 * BURST], "end"),
        *("begin", *names[2 * BURST :], "end"),
    ]
    heard.clear()
    client._on_message(StepOutputs([]))
    assert not heard
