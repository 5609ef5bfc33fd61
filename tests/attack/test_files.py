"""A file of 512 MB through a worker: its memory does not grow with it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.attack.serving import Deployment

SIZE, PIECE = 512 * 2**20, bytes(range(256)) * 256
WITHIN = 64 * 2**20


@pytest.fixture(scope="module")
def deployment(database: str) -> Iterator[Deployment]:
    with Deployment(database, num_workers=1, replay_tokens_per_s=20) as deployment:
        yield deployment


@pytest.mark.nightly
@pytest.mark.pg
@pytest.mark.asyncio
async def test_a_file_of_512_mb_comes_and_goes_in_pieces(deployment: Deployment) -> None:
    member = deployment.member("large")
    head = (
        b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )

    async def form() -> AsyncIterator[bytes]:
        yield head
        for _ in range(SIZE // len(PIECE)):
            yield PIECE
        yield b"\r\n--x--\r\n"

    before, most = deployment.memory(), 0

    async def watch() -> None:
        nonlocal most
        while True:
            now = deployment.memory()
            most = max(most, *(now[pid] - was for pid, was in before.items()))
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    headers = {"authorization": f"Bearer {member.key}"}
    async with httpx.AsyncClient(base_url=deployment.url, timeout=60, headers=headers) as client:
        kind = {"content-type": "multipart/form-data; boundary=x"}
        made = (await client.post("/v1/files", content=form(), headers=kind)).json()
        assert made["bytes"] == SIZE, made
        digest = hashlib.sha256()
        async with client.stream("GET", f"/v1/files/{made['id']}/content") as answer:
            async for piece in answer.aiter_bytes():
                digest.update(piece)
        whole = hashlib.sha256()
        for _ in range(SIZE // len(PIECE)):
            whole.update(PIECE)
        assert digest.digest() == whole.digest()
        assert (await client.delete(f"/v1/files/{made['id']}")).json()["deleted"]
    watching.cancel()
    assert most <= WITHIN, f"{most / 2**20:.0f} MiB more"
