"""The demo's folder: private files, whole files, stale files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gateway.commands.data_dir import DataDir, Keys, Running
from gateway.errors import SecretsError, SetupError

KEYS = Keys(api_key="a", admin_key="b")


def running(pid: int) -> Running:
    return Running(url="http://h:1", ws_url="ws://h:1", api_key="a", admin_key="b", pid=pid)


@pytest.fixture
def folder(tmp_path: Path) -> DataDir:
    folder = DataDir(tmp_path / "a" / "b")
    folder.create()
    return folder


def test_keys_come_back(folder: DataDir) -> None:
    assert folder.load_keys() is None
    folder.save_keys(KEYS)
    assert folder.load_keys() == KEYS
    folder.save_keys(Keys(api_key="c", admin_key="d"))
    assert folder.load_keys() == Keys(api_key="c", admin_key="d")


def test_only_the_owner_reads_and_nothing_else_is_left(folder: DataDir) -> None:
    before = os.umask(0)
    try:
        folder.save_keys(KEYS)
        folder.load_or_create_secrets()
        running(1).write(folder.ready_file)
    finally:
        os.umask(before)
    files = sorted(folder.root.iterdir())
    assert [file.name for file in files] == ["keys.json", "ready.json", "secrets.json"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


@pytest.mark.parametrize("content", [b"", b"{", b'{"api_key": 1}', b"[]"])
def test_a_broken_keys_file_is_no_keys(folder: DataDir, content: bytes) -> None:
    (folder.root / "keys.json").write_bytes(content)
    assert folder.load_keys() is None


def test_secrets_are_made_once(folder: DataDir) -> None:
    made = folder.load_or_create_secrets()
    assert folder.load_or_create_secrets() == made


def test_secrets_that_others_can_read_are_refused(folder: DataDir) -> None:
    folder.load_or_create_secrets()
    folder.secrets_file.chmod(0o644)
    with pytest.raises(SecretsError, match="chmod 600"):
        folder.load_or_create_secrets()


def test_a_running_demo_is_found(folder: DataDir) -> None:
    assert folder.running() is None
    here = running(os.getpid())
    here.write(folder.ready_file)
    assert folder.running() == here


def test_a_demo_whose_process_is_gone_is_not_running(folder: DataDir) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    running(process.pid).write(folder.ready_file)
    assert folder.running() is None


def test_nobody_removes_anothers_ready_file(folder: DataDir) -> None:
    mine, other = running(1), running(2)
    other.write(folder.ready_file)
    mine.remove(folder.ready_file)
    assert folder.ready_file.exists()
    other.remove(folder.ready_file)
    assert not folder.ready_file.exists()
    other.remove(folder.ready_file)  # gone already: fine


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"missing/ready\.json cannot be written: No such"):
        running(1).write(tmp_path / "missing" / "ready.json")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"file/x cannot be made .*--data-dir"):
        DataDir(tmp_path / "file" / "x").create()


def test_the_first_on_a_folder_owns_it_until_it_ends(folder: DataDir) -> None:
    with folder.owned() as first:
        assert first
        with folder.owned() as second:
            assert not second
        with folder.owned() as third:
            assert not third
    with folder.owned() as next_one:
        assert next_one


def test_an_owner_may_fail(folder: DataDir) -> None:
    with pytest.raises(BlockingIOError, match="of the block"), folder.owned():
        raise BlockingIOError("of the block")
