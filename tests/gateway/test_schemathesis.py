"""Requests made up from the published OpenAPI document: none of them is the server's fault."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import msgspec
import pytest

from gateway.routes.table import OPERATIONS
from gateway.schemas import openapi
from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.serving import MODEL, Gateway

COMMAND = (
    *(sys.executable, "-m", "schemathesis.cli", "run"),
    *("--checks", "not_a_server_error"),
    *("--generation-database", "none"),
    *("--seed", "1"),
    *("--request-timeout", "60"),
    "--no-color",
)


@pytest.mark.parametrize(
    ("phases", "num_examples", "num_sent", "num_generating"),
    [
        ("examples,fuzzing", 4, 40, 0),
        pytest.param("examples,coverage,fuzzing", 10, 1000, 10, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.asyncio
async def test_no_request_is_answered_with_a_5xx(
    phases: str,
    num_examples: int,
    num_sent: int,
    num_generating: int,
    gateway: Gateway,
    double: EngineDouble,
    tmp_path: Path,
) -> None:
    double.script = lambda prompt: Play(text="Hi")
    document = openapi.document([one for one in OPERATIONS if not one.path.startswith("/admin/")])
    for schema in document["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"]["const"] = MODEL  # else every request ends with a 404
    path = tmp_path / "openapi.json"
    path.write_bytes(msgspec.json.encode(document))
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("--phases", phases, "--max-examples", str(num_examples)),
        *("--header", f"Authorization: Bearer {gateway.api_key}"),
        *("--url", gateway.url),
        str(path),
        cwd=tmp_path,  # it leaves its cache where it runs
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    report = out.decode()
    assert process.returncode == 0, report[-8000:]
    found = re.search(r"(\d+) generated, (\d+) passed", report)
    assert found is not None, report[-8000:]
    assert int(found[1]) == int(found[2]) > num_sent
    assert len(double.requests) >= num_generating, "some get as far as the engine"
