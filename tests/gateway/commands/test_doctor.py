"""``sluice doctor`` and ``sluice config``: what is wrong is named, with its mend."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

import migrations
from gateway import config as configuration
from gateway import secrets
from gateway.commands import doctor
from gateway.config import Config
from tests import forked
from tests.gateway.oidc.provider import provider
from tests.gateway.otlp import collector
from tests.postgres import empty_pg_dsn

__all__ = ["empty_pg_dsn"]

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "engine" / "demo" / "model"


def sluice(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return forked.sluice(*arguments, cwd=cwd, env=env)


def write(folder: Path, dsn: str = "postgresql://nobody@127.0.0.1:1/none", **server: int) -> Path:
    lines = ["[engine]", f'model = "{DEMO}"', 'device = "cpu"', "[tenants]", f'dsn = "{dsn}"']
    lines += ["[server]", *(f"{key} = {value}" for key, value in server.items())]
    path = folder / "sluice.toml"
    path.write_text("\n".join(lines))
    return path


def settings(folder: Path, dsn: str = "postgresql://nobody@127.0.0.1:1/none") -> Config:
    return configuration.load(write(folder, dsn, port=0), env={})


def texts(check: doctor.Check, config: Config) -> dict[str, str]:
    return {found.what: f"{found.verdict}: {found.text}" for found in check(config)}


@pytest.mark.pg
def test_a_server_that_can_start(tmp_path: Path, pg_dsn: str) -> None:
    write(tmp_path, pg_dsn, port=0)
    secrets.create(tmp_path / ".sluice" / "secrets.json")
    done = sluice("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("wrong")] == []
    assert f"ok     schema: {migrations.head()}" in lines
    assert any(line.startswith("ok     model: ") and "(native)" in line for line in lines)


def test_a_server_that_lacks_everything(tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text('[engine]\nmodel = "nowhere"\n')
    done = sluice("doctor", cwd=tmp_path)
    assert done.returncode == 1
    for line in (
        "wrong  secrets: .sluice/secrets.json: no such file; `sluice migrate` makes one",
        "wrong  PostgreSQL: tenants.dsn is missing; set it to the one to use",
        "wrong  model: there is no folder 'nowhere'",
    ):
        assert line in done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "sluice.toml"], "it leaves nothing"


@pytest.mark.pg
def test_a_database_without_a_schema(tmp_path: Path, empty_pg_dsn: str) -> None:
    found = texts(doctor.check_postgres, settings(tmp_path, empty_pg_dsn))
    assert found["PostgreSQL"].startswith("ok: version 18")
    assert found["schema"].startswith("wrong: ")
    assert "sluice migrate" in found["schema"]


def test_a_database_that_is_away(tmp_path: Path) -> None:
    (text,) = texts(doctor.check_postgres, settings(tmp_path)).values()
    assert text.startswith("wrong: ")
    assert "127.0.0.1:1" in text


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (14, "wrong: version 14; upgrade it: 15 is the least"),
        (15, "note: version 15; the tests run on 18"),
        (18, "ok: version 18"),
    ],
)
def test_an_old_database(version: int, text: str) -> None:
    found = doctor._look_at_version(version)
    assert f"{found.verdict}: {found.text}" == text


@pytest.mark.parametrize(("hard", "verdict"), [(60, "wrong"), (1000, "note"), (2**20, "ok")])
def test_files_that_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard: int, verdict: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (hard, hard))
    (text,) = texts(doctor.check_open_files, settings(tmp_path)).values()
    assert text.startswith(f"{verdict}: ")


def test_a_torch_that_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "torch.py"
    broken.write_text("raise ImportError('libcudart.so.13: cannot open')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (text,) = texts(doctor.check_devices, settings(tmp_path)).values()
    assert text.startswith("wrong: cannot be imported: ImportError: libcudart.so.13")


def test_secrets_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / ".sluice" / "secrets.json"
    secrets.create(path)
    path.chmod(0o644)
    (text,) = texts(doctor.check_secrets, settings(tmp_path)).values()
    assert f"chmod 600 {path}" in text


@pytest.mark.parametrize(("days", "verdict"), [(100, "ok"), (5, "note"), (-3, "wrong")])
def test_a_certificate_that_ends(tmp_path: Path, days: int, verdict: str) -> None:
    pem, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sluice.example.com")])
    ends = datetime.now(UTC) + timedelta(days=days)
    made = x509.CertificateBuilder(
        name, name, private.public_key(), 1, ends - timedelta(days=200), ends
    ).sign(private, hashes.SHA256())
    pem.write_bytes(made.public_bytes(Encoding.PEM))
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    env = {"SLUICE_SERVER_TLS_CERTIFICATE": str(pem), "SLUICE_SERVER_TLS_KEY": str(key)}
    config = configuration.load(write(tmp_path), env=env)
    (text,) = texts(doctor.check_tls, config).values()
    assert text.startswith(f"{verdict}: {pem} is good until {ends:%Y-%m-%d}")


def test_a_port_that_is_taken_is_a_note(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = configuration.load(write(tmp_path, port=port), env={})
        (text,) = texts(doctor.check_port, config).values()
    assert text.startswith("note: ")
    assert f"127.0.0.1:{port}" in text


def test_an_address_of_another_machine_is_wrong(tmp_path: Path) -> None:
    env = {"SLUICE_SERVER_HOST": "203.0.113.9"}
    (text,) = texts(doctor.check_port, configuration.load(write(tmp_path), env=env)).values()
    assert text.startswith("wrong: 203.0.113.9:8000 is not an address of this machine")


def test_a_collector(tmp_path: Path) -> None:
    with collector() as taken:
        config = configuration.load(
            write(tmp_path), env={"SLUICE_TRACING_OTLP_ENDPOINT": taken.endpoint}
        )
        assert texts(doctor.check_tracing, config) == {"tracing": f"ok: {taken.endpoint}"}
    (text,) = texts(doctor.check_tracing, config).values()
    assert "start the collector" in text


@pytest.mark.asyncio
async def test_a_provider_of_sign_in(tmp_path: Path) -> None:
    async with provider() as one:

        async def told(**settings: str) -> str:
            env = {"ISSUER": one.issuer, "AUDIENCES": '["sluice"]', **settings}
            env = {f"SLUICE_OIDC_{name}": value for name, value in env.items()}
            config = configuration.load(write(tmp_path), env=env)
            found = await asyncio.to_thread(lambda: [*doctor.check_sign_in(config)])
            return "; ".join(f"{finding.verdict}: {finding.text}" for finding in found)

        assert await told() == f"ok: {one.issuer}, 1 keys"
        one.ahead_s = 62.0
        assert (await told()).startswith("ok: "), "within oidc.clock_skew_s, but for a second"
        one.ahead_s = -300.0
        assert "; wrong: its clock is -30" in await told()
        assert "wrong" not in await told(CLOCK_SKEW_S="400")
        one.ahead_s = None
        one.signs_by = ["HS256"]
        assert "wrong: it signs by HS256 only" in await told()
        one.signs_by = ["HS256", "ES256"]
        assert (await told()).startswith("ok: ")
        one.keys = []
        assert "wrong: its keys cannot be read: " in await told()
        text = await told(ISSUER=f"{one.issuer}/")
        assert f"wrong: it calls itself '{one.issuer}', not as oidc.issuer does" in text
        one.is_away = True
        assert f"wrong: {one.issuer}/.well-known/openid-configuration: " in await told()
        missing = {"CLIENT_ID": "a", "PUBLIC_URL": one.issuer, "CLIENT_SECRET_FILE": "/none"}
        assert (
            await told(**missing)
            == "wrong: oidc.client_secret_file: /none: No such file or directory"
        )


def test_a_checkpoint_without_its_weights(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    config = configuration.load(write(tmp_path), env={"SLUICE_ENGINE_MODEL": str(model)})
    (text,) = texts(doctor.check_models, config).values()
    assert "has no model.safetensors" in text


def test_settings_that_are_checked(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert "can be used" in sluice("config", "check", cwd=tmp_path).stdout
    path.write_text(path.read_text() + "\nprot = 1\n")
    done = sluice("config", "check", cwd=tmp_path)
    assert done.returncode == 1
    assert "unknown key server.prot" in done.stderr


def test_settings_that_are_shown_can_be_read_again(tmp_path: Path) -> None:
    write(tmp_path, "postgresql://me:hush@db/sluice", port=9)
    env = {"SLUICE_ENGINE_SPECULATIVE_CONFIG": '{method = "ngram", num_speculative_tokens = 4}'}
    shown = sluice("config", "show", cwd=tmp_path, **env).stdout
    assert "hush" not in shown
    document = tomllib.loads(shown)
    assert document["server"]["port"] == 9
    assert document["engine"]["speculative_config"]["num_speculative_tokens"] == 4
    configuration.parse(document)
    changed = tomllib.loads(sluice("config", "show", "--changed", cwd=tmp_path, **env).stdout)
    assert changed["server"] == {"port": 9}
    assert set(changed["engine"]) == {"model", "device", "speculative_config"}
    assert os.fspath(DEMO) == changed["engine"]["model"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
def test_a_journal_of_another_account(tmp_path: Path) -> None:
    config = settings(tmp_path)
    config.tenants.journal_folder.mkdir(parents=True)
    config.tenants.journal_folder.parent.chmod(0o700)
    os.seteuid(65534)
    try:
        (text,) = texts(doctor.check_journal, config).values()
    finally:
        os.seteuid(0)
    assert text.startswith("wrong: ")
    assert "Permission denied" in text
    assert "set tenants.journal_dir" in text
