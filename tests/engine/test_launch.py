from __future__ import annotations

import msgspec

from engine.config import EngineConfig
from engine.launch import Launch


def test_launch_survives_json() -> None:
    launch = Launch(
        config=EngineConfig(model="m", max_model_len=7, device="cpu"), address="ipc:///x"
    )
    line = msgspec.json.encode(launch)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=Launch) == launch
