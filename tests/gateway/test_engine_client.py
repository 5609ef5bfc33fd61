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
    assert client._hang_timeout_s == 9.5
    assert client._max_unread_tokens == 33
    assert client._stall_timeout_s == 4.5


def test_a_client_that_takes_nothing_is_parked_before_it_is_dropped() -> None:
    server = ServerConfig()
    assert server.stall_timeout_s >= server.send_timeout_s
