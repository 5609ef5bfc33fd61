"""Files of pixels, and who removes them."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from engine.client.attached import AttachedEngine
from engine.messages import GenerateRequest, Image
from engine.sampling_params import SamplingParams
from gateway.errors import InvalidRequestError, Overloaded, RateLimited
from gateway.images.memory import PREFIX, Held, Room, SharedFolder
from gateway.images.worker import _saved

KILLED = """
import os, signal, sys
from pathlib import Path
from gateway.images.memory import SharedFolder
folder = SharedFolder(Path(sys.argv[1]))
Path(folder.new_file()).write_bytes(b"secret")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (left,) = tmp_path.glob(f"{PREFIX}*")
    assert left.stat().st_mode & 0o777 == 0o700
    alive = SharedFolder(tmp_path)
    file = Path(alive.new_file())
    assert _saved(file, b"pixels")
    assert file.stat().st_mode & 0o777 == 0o600
    SharedFolder(tmp_path).remove_leftovers()
    assert not left.exists()
    assert file.read_bytes() == b"pixels"
    alive.close()
    alive.close()
    assert not [*tmp_path.iterdir()]


def test_without_shared_memory_there_is_no_file(tmp_path: Path) -> None:
    assert SharedFolder(tmp_path / "none").new_file() == ""
    assert not _saved(tmp_path / "none" / "file", b"pixels")
    assert not _saved(Path("/dev/full"), b"pixels")


def test_room_is_shared_by_tenants(tmp_path: Path) -> None:
    room, one, other = Room(100), uuid4(), uuid4()
    file = tmp_path / "file"
    file.write_bytes(b"x")
    held = Held(room, one, 50)
    held.keep(str(file))
    held.keep(str(tmp_path / "never written"))
    with pytest.raises(RateLimited):
        Held(room, one, 1)
    with pytest.raises(InvalidRequestError):
        Held(room, one, 51)
    rest = Held(room, other, 50)
    with pytest.raises(Overloaded):
        Held(room, uuid4(), 1)
    held.close()
    held.close()
    assert (room.num_bytes, file.exists()) == (50, False)
    del rest
    gc.collect()
    assert room.num_bytes == 0


def request_with(segment: str) -> GenerateRequest:
    image = Image(offset=0, num_tokens=1, height=1, width=2, digest=bytes(32), segment=segment)
    return GenerateRequest(
        request_id="r", prompt_token_ids=[1], params=SamplingParams(), images=[image]
    )


def test_an_engine_of_another_host_gets_the_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SharedFolder()
    file = folder.new_file()
    assert _saved(Path(file), b"abcdef")
    request = request_with(file)
    sent: list[GenerateRequest] = []
    monkeypatch.setattr(
        "engine.client.transport.EngineSocket.send", lambda _, one: sent.append(one)
    )
    for shares_memory in (True, False):
        transport = AttachedEngine.__new__(AttachedEngine)
        transport._shares_memory = shares_memory
        transport.send(request)
    folder.close()
    assert [(image.segment, image.pixels) for one in sent for image in one.images] == [
        (file, b""),
        ("", b"abcdef"),
    ]
