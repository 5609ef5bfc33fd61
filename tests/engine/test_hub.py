"""Models by name, against a small hub of our own over real HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from engine import hub
from engine.errors import ModelLoadError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"what nobody needs",
}


class Hub(BaseHTTPRequestHandler):
    """The repository owner/name: whoever brings the token 'secret' may read it."""

    seen: ClassVar[list[str]]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.seen.append(path)
        if self.headers.get("Authorization") != "Bearer secret":
            self.answer(401, b"{}", {"X-Error-Code": "GatedRepo"})
        elif path in (f"/api/models/owner/name/revision/{at}" for at in ("main", "v1", COMMIT)):
            siblings = [{"rfilename": name} for name in FILES]
            self.answer(200, json.dumps({"id": "owner/name", "sha": COMMIT, "siblings": siblings}))
        elif path.startswith("/api/models/owner/name/tree/"):
            self.answer(
                200,
                json.dumps(
                    [
                        {"type": "file", "path": name, "size": len(data), "oid": digest(data)}
                        for name, data in FILES.items()
                    ]
                ),
            )
        elif path.startswith(f"/owner/name/resolve/{COMMIT}/"):
            self.answer(200, FILES[path.rpartition("/")[2]])
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})

    def answer(self, status: int, body: bytes | str, headers: dict[str, str] | None = None) -> None:
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        more = {"ETag": f'"{digest(body)}"', "X-Repo-Commit": COMMIT}
        for name, value in {**more, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


def digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def serving() -> Iterator[tuple[str, list[str]]]:
    """The hub's address, and the paths it was asked for."""

    class Handler(Hub):
        seen: ClassVar[list[str]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", Handler.seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fetch(home: Path, endpoint: str, *, revision: str | None = None, **env: str) -> str:
    """In a process of its own, as huggingface_hub reads its settings once: the folder, or the
    error."""
    code = (
        "import sys\n"
        "from engine import hub\n"
        "from engine.errors import ModelLoadError\n"
        "try:\n"
        f"    print(hub.fetch('owner/name', {revision!r}))\n"
        "except ModelLoadError as error:\n"
        "    print(error)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_repository_is_downloaded_once_and_then_never_asked_for(tmp_path: Path) -> None:
    with serving() as (endpoint, seen):
        folder = Path(fetch(tmp_path, endpoint, HF_TOKEN="secret"))
        assert {path.name for path in folder.iterdir()} == FILES.keys() - {"pytorch_model.bin"}
        assert (folder / "model.safetensors").read_bytes() == b"weights"
        del seen[:]
        assert fetch(tmp_path, endpoint) == str(folder)
        assert not seen
        # What is incomplete is completed.
        (folder / "model.safetensors").unlink()
        assert fetch(tmp_path, endpoint, HF_TOKEN="secret") == str(folder)
        assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_a_revision_is_asked_for_by_name(tmp_path: Path) -> None:
    with serving() as (endpoint, seen):
        folder = fetch(tmp_path, endpoint, revision="v1", HF_TOKEN="secret")
        assert folder.endswith(COMMIT)
        assert any("/v1" in path for path in seen)
        error = fetch(tmp_path, endpoint, revision="v9", HF_TOKEN="secret")
    assert "at revision 'v9' it cannot be downloaded" in error


@pytest.mark.parametrize(
    ("env", "reason"), [({}, "gated"), ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE")]
)
def test_what_cannot_be_downloaded_says_why(
    tmp_path: Path, env: dict[str, str], reason: str
) -> None:
    with serving() as (endpoint, _):
        error = fetch(tmp_path, endpoint, **env)
    assert error.startswith("there is no folder 'owner/name', and as a hub model it cannot be")
    assert reason in error
    assert "\n" not in error


def test_a_folder_is_itself(tmp_path: Path) -> None:
    with pytest.raises(
        ModelLoadError, match=r"is not the folder of a model: it has no config\.json"
    ):
        hub.fetch(str(tmp_path), None)
    (tmp_path / "config.json").write_text("{}")
    assert hub.fetch(str(tmp_path), None) == tmp_path
    with pytest.raises(ModelLoadError, match="revision 'v1' is for models of the hub"):
        hub.fetch(str(tmp_path), "v1")
    with pytest.raises(ModelLoadError, match="there is no folder '/no/such/folder': give a model"):
        hub.fetch("/no/such/folder", None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Llama-3.1-8B", True),
        ("Qwen/Qwen2.5_x", True),
        ("gpt2", False),
        ("./owner/name", False),
        ("/owner/name", False),
        ("../name", False),
        ("a/b/c", False),
    ],
)
def test_ids_are_told_from_paths(name: str, expected: bool) -> None:
    assert hub.is_hub_id(name) is expected


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "x-1.safetensors").touch()
    with pytest.raises(ModelLoadError, match=r"has no x-2\.safetensors"):
        hub.weight_files(tmp_path)
