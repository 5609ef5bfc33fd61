from __future__ import annotations

import pytest

from engine.bench.overload import ModelledRunner
from engine.config import MAX_DEFAULT_NUM_SEQS
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams
from gateway.config import ServerConfig, parse
from gateway.errors import ConfigError
from gateway.processes.fleet import spawned_fleets


def test_the_settings_arrive() -> None:
    config = parse(
        {
            "engine": {"model": "any", "max_num_queued_reqs": 7},
            "server": {
                "engine_hang_timeout_s": 9.5,
                "max_unread_tokens": 33,
                "stall_timeout_s": 4.5,
            },
        }
    )
    (client,) = spawned_fleets(config).engines
    assert client._config is config.engine
    assert client._max_num_queued_reqs == 7 + MAX_DEFAULT_NUM_SEQS
    asked = parse({"engine": {"model": "any", "max_num_queued_reqs": 7, "max_num_seqs": 3}})
    assert spawned_fleets(asked).engines[0]._max_num_queued_reqs == 7 + 3
    assert client._hang_timeout_s == 9.5
    assert client._max_unread_tokens == 33
    assert client._stall_timeout_s == 4.5


def test_the_engine_alone_decides_how_much_may_wait() -> None:
    """An engine without a limit gets whatever is sent; one with a limit is never second-guessed."""
    assert parse({"engine": {"model": "any"}}).engine.max_num_queued_reqs == 1024
    config = parse({"engine": {"model": "any", "max_num_queued_reqs": 50_000}})
    limit = spawned_fleets(config).engines[0]._max_num_queued_reqs
    assert limit is not None
    assert limit > 50_000


def test_a_client_that_takes_nothing_is_parked_before_it_is_dropped() -> None:
    server = ServerConfig()
    assert server.stall_timeout_s >= server.send_timeout_s


@pytest.mark.parametrize(("floor", "survives"), [(None, True), (0.0, False)])
def test_a_loud_tenant_leaves_a_quiet_one_its_cached_prefix(
    floor: float | None, survives: bool
) -> None:
    """With the settings as they are unless told otherwise, and what the floor is there for."""
    asked = {} if floor is None else {"prefix_cache_tenant_floor": floor}
    config = parse({"engine": {"model": "any", **asked}}).engine
    core = EngineCore(config, ModelledRunner(num_blocks=200), max_model_len=1000)

    def serve(name: str, tenant: str, prompt: list[int]) -> int:
        core.add_request(
            GenerateRequest(
                request_id=name,
                prompt_token_ids=prompt,
                params=SamplingParams(max_tokens=1),
                cache_salt=tenant,
                fair_key=tenant,
            )
        )
        (last,) = [output for _ in range(9) for output in core.step() if output.finish_reason]
        return last.num_cached_tokens

    quiet = list(range(100))
    serve("quiet", "quiet", quiet)
    for number in range(30):
        serve(f"loud {number}", "loud", [(7 * i + number) % 997 for i in range(300)])
    assert (serve("quiet again", "quiet", quiet) >= 96) is survives


def environments(monkeypatch: pytest.MonkeyPatch, visible: str, **settings: int) -> list[object]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    config = parse(
        {
            "engine": {
                "model": "any",
                "tensor_parallel_size": settings.pop("size", 1),
                "pipeline_parallel_size": settings.pop("stages", 1),
            },
            "fleet": settings,
        }
    )
    spawned: list[object] = []
    fleet = spawned_fleets(config, transport=lambda *_, **options: spawned.append(options))
    for engine in fleet.engines:
        engine._make_transport(config.engine, print, print)
    return spawned


def test_each_engine_has_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def visible(*gpus: str) -> list[object]:
        return [{"environment": {"CUDA_VISIBLE_DEVICES": one}} for one in gpus]

    assert environments(monkeypatch, "3,5,6,7", replicas=3) == visible("3", "5", "6")
    assert environments(monkeypatch, "3,5,6,7", replicas=2, size=2) == visible("3,5", "6,7")
    assert environments(monkeypatch, "3,5,6,7", replicas=2, stages=2) == visible("3,5", "6,7")
    assert environments(monkeypatch, "3,5,6,7", replicas=1, size=2) == [{}]
    assert environments(monkeypatch, "", replicas=2) == [{}, {}]
    with pytest.raises(ConfigError, match="each takes 2 of this machine's 3 GPUs"):
        environments(monkeypatch, "0,1,2", replicas=2, size=2)
