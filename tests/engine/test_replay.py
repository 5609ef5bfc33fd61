from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from engine.client.client import EngineClient
from engine.client.transport import ReplayProcess
from engine.config import EngineConfig
from engine.demo import MODEL_DIR
from engine.errors import ModelLoadError
from engine.messages import GenerateRequest, Grant, RequestOutput
from engine.replay import TEXT, ReplayCore, build
from engine.sampling_params import SamplingParams, StructuredOutputs
from engine.text.tokenizer import Tokenizer

WORDS = [11, 12, 13]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def make_core(tokens_per_s: float = 10) -> tuple[ReplayCore, Clock]:
    clock = Clock()
    return ReplayCore(WORDS, tokens_per_s, clock=clock, sleep=clock.sleep), clock


def request(
    name: str = "r", num_granted_tokens: int | None = None, **params: object
) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=[1],
        params=SamplingParams(**params),  # type: ignore[arg-type]
        num_granted_tokens=num_granted_tokens,
    )


def run(core: ReplayCore, clock: Clock) -> list[tuple[float, RequestOutput]]:
    """Every output with its time."""
    told = []
    while core.has_unfinished:
        told += [(clock.now_s, output) for output in core.step()]
    return told


def test_a_request_gets_its_tokens_at_the_pace() -> None:
    core, clock = make_core()
    core.add_request(request(max_tokens=2))
    told = run(core, clock)
    assert [output.new_token_ids for _, output in told] == [[11], [12]]
    assert [time_s for time_s, _ in told] == pytest.approx([0.0, 0.1])
    assert [output.finish_reason for _, output in told] == [None, "length"]


def test_the_text_ends_unless_eos_is_ignored() -> None:
    core, clock = make_core()
    core.add_request(request(max_tokens=None))
    assert [output.finish_reason for _, output in run(core, clock)] == [None, None, "stop"]
    core.add_request(request(max_tokens=7, ignore_eos=True))
    ids = [i for _, output in run(core, clock) for i in output.new_token_ids]
    assert ids == [11, 12, 13, 11, 12, 13, 11]


def test_each_request_has_a_clock_of_its_own() -> None:
    core, clock = make_core()
    core.add_request(request("a", max_tokens=3))
    core.step()
    clock.now_s = 0.05
    core.add_request(request("b", max_tokens=3))
    told = run(core, clock)
    assert [(round(time_s, 2), output.request_id) for time_s, output in told] == [
        *((0.05, "b"), (0.1, "a"), (0.15, "b"), (0.2, "a"), (0.25, "b"))
    ]


def test_a_slow_loop_catches_up() -> None:
    core, clock = make_core()
    core.add_request(request(max_tokens=3))
    core.step()
    clock.now_s = 1.0
    assert [output.new_token_ids for output in core.step()] == [[12], [13]]


def test_an_abort_has_the_last_word() -> None:
    core, _ = make_core()
    core.add_request(request(max_tokens=3))
    core.step()
    core.abort(["r", "unknown"])
    assert core.step() == [RequestOutput("r", [], "abort")]
    assert not core.has_unfinished


def test_a_parked_request_waits() -> None:
    core, clock = make_core()
    core.add_request(request(max_tokens=2))
    core.step()
    core.park(["r", "unknown"])
    assert core.stats().num_parked == 1
    clock.now_s = 5.0
    assert core.step() == []
    core.unpark(["r"])
    assert [output.finish_reason for _, output in run(core, clock)] == ["length"]
    assert core.stats().generation_tokens == 2


def test_a_pause_that_ends_before_the_next_token_is_due_changes_nothing() -> None:
    core, clock = make_core()
    core.add_request(request(max_tokens=6, ignore_eos=True, num_granted_tokens=3))
    core.step()
    for _ in range(3):
        core.park(["r"])
        core.grant([Grant("r", 6)])
        core.unpark(["r"])
    told = run(core, clock)
    assert [time_s for time_s, _ in told] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_grant_is_no_reason_to_go_on_for_one_that_is_parked() -> None:
    core, clock = make_core()
    core.add_request(request(max_tokens=3, ignore_eos=True, num_granted_tokens=1))
    for _ in range(3):
        clock.now_s += 0.1
        core.step()
    core.park(["r"])
    core.grant([Grant("r", 3)])
    clock.now_s += 1.0
    assert core.step() == []
    assert core.stats().num_parked == 1
    core.unpark(["r"])
    assert [len(output.new_token_ids) for _, output in run(core, clock)] == [1, 1]


def test_not_one_token_comes_before_it_is_granted() -> None:
    core, clock = make_core()
    core.add_request(request(max_tokens=9, ignore_eos=True, num_granted_tokens=2))
    for granted, is_last in ((2, False), (3, False), (5, True)):
        core.grant([Grant("r", granted, is_last), Grant("unknown", 9)])
        for _ in range(20):
            clock.now_s += 0.1
            core.step()
        assert core.stats().generation_tokens == granted
    assert not core.has_unfinished


def test_the_last_grant_ends_who_waits_for_it() -> None:
    core, clock = make_core()
    core.add_request(request(max_tokens=9, num_granted_tokens=1))
    for _ in range(5):
        clock.now_s += 0.1
        core.step()
    assert core.stats().num_parked == 1
    core.grant([Grant("r", 1, is_last=True)])
    assert core.step() == [RequestOutput("r", [], "length")]
    assert not core.has_unfinished


def test_what_needs_a_model_is_refused() -> None:
    core, _ = make_core()
    core.add_request(request(structured_outputs=StructuredOutputs(json_object=True)))
    (refusal,) = core.step()
    assert refusal.error_code == "invalid_request"
    assert "fixed text" in str(refusal.error)


@pytest.mark.asyncio
async def test_the_process_speaks_the_models_tokens() -> None:
    client = EngineClient(
        EngineConfig(model=str(MODEL_DIR)), transport=partial(ReplayProcess, tokens_per_s=1000)
    )
    await client.start()
    try:
        assert client.info.device == "none"
        stream = client.submit(request(max_tokens=None))
        async with asyncio.timeout(20):
            ids = [i async for output in stream for i in output.new_token_ids]
        assert Tokenizer.load(MODEL_DIR).decode(ids) == TEXT
    finally:
        await client.close()


@pytest.mark.asyncio
async def test_a_model_that_is_not_there() -> None:
    client = EngineClient(
        EngineConfig(model="nowhere"), transport=partial(ReplayProcess, tokens_per_s=1)
    )
    with pytest.raises(ModelLoadError, match="nowhere"):
        await client.start()


def test_a_model_that_sees_has_its_limits_in_the_config_of_its_text(tmp_path: Path) -> None:
    for file in MODEL_DIR.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = {"text_config": {"max_position_embeddings": 77, "vocab_size": 9}, "vocab_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ready = build(10.0, EngineConfig(model=str(tmp_path)), lambda _: None).ready
    assert (ready.max_model_len, ready.vocab_size) == (77, 9)
