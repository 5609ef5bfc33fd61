from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway import secrets
from gateway.errors import SecretsError


def test_created_secrets_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "secrets.json"
    made = secrets.create(path)
    assert secrets.load(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_no_two_are_alike() -> None:
    one, other = secrets.generate(), secrets.generate()
    assert one.key_pepper != other.key_pepper
    assert one.key_pepper != one.cache_salt_root


def test_existing_secrets_are_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    made = secrets.create(path)
    with pytest.raises(SecretsError, match="exists already"):
        secrets.create(path)
    assert secrets.load(path) == made
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_open_to_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    secrets.create(path)
    path.chmod(0o640)
    with pytest.raises(SecretsError, match="chmod 600"):
        secrets.load(path)


@pytest.mark.parametrize(
    "content", ["", "{}", '{"key_pepper": "AAAA", "cache_salt_root": "AAAA"}', "\xff"]
)
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secrets.json"
    path.write_bytes(content.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(SecretsError, match="not a secrets file"):
        secrets.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretsError, match="no such file; `sluice migrate` makes one"):
        secrets.load(tmp_path / "none.json")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "secrets.json"
    folder.mkdir(mode=0o700)
    with pytest.raises(SecretsError, match=r"secrets\.json: cannot be read: Is a directory"):
        secrets.load(folder)


def test_secrets_do_not_show(tmp_path: Path) -> None:
    made = secrets.generate()
    assert repr(made) == "Secrets(...)"
    assert str(made) == "Secrets(...)"
