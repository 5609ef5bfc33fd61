from __future__ import annotations

from gateway.config import ServerConfig, parse
from gateway.engine_client import make_engine_client


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
    client = make_engine_client(config)
    assert client._config is config.engine
    assert client._max_num_queued_reqs == 7 + config.engine.max_num_seqs
    assert client._hang_timeout_s == 9.5
    assert client._max_unread_tokens == 33
    assert client._stall_timeout_s == 4.5


def test_the_engine_alone_decides_how_much_may_wait() -> None:
    """An engine without a limit gets whatever is sent; one with a limit is never second-guessed."""
    assert parse({"engine": {"model": "any"}}).engine.max_num_queued_reqs == 1024
    config = parse({"engine": {"model": "any", "max_num_queued_reqs": 50_000}})
    limit = make_engine_client(config)._max_num_queued_reqs
    assert limit is not None
    assert limit > 50_000


def test_a_client_that_takes_nothing_is_parked_before_it_is_dropped() -> None:
    server = ServerConfig()
    assert server.stall_timeout_s >= server.send_timeout_s
