"""The console script's failures: one line with cause and mend, an exit code, no traceback."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import secrets
from tests import forked

ROOT = Path(__file__).parents[2]


def sluice(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return forked.sluice(*arguments, cwd=cwd, env={"COLUMNS": "80", **env})


def complaint(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line on stderr of a command that failed as it should."""
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("sluice: ")
    assert "Traceback" not in done.stderr + done.stdout
    return lines[0].removeprefix("sluice: ")


@pytest.mark.parametrize(
    ("arguments", "cause", "mend"),
    [
        (["demo", "--prot", "1"], "No such option: --prot", "`sluice demo --help`"),
        (["demo", "--port", "x"], "'--port'", "valid integer"),
        (["demo", "--port", "65536"], "'--port'", "less than or equal to 65535"),
        (["serv"], "No such command 'serv'", "`sluice --help`"),
        (["tenant", "create"], "Missing argument", "`sluice tenant create --help`"),
        (["key", "create", "t", "extra"], "extra", "`sluice key create --help`"),
        (["bench", "-c", "0"], "'-c'", "greater than or equal to 1"),
        (["chat", "--temperature", "-1", "hi"], "'--temperature'", "greater than or equal to 0"),
    ],
)
def test_a_wrong_command_line(tmp_path: Path, arguments: list[str], cause: str, mend: str) -> None:
    line = complaint(sluice(*arguments, cwd=tmp_path), code=2)
    assert cause in line
    assert mend in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["tenant"], ["key"]])
def test_without_a_command_it_shows_help(tmp_path: Path, arguments: list[str]) -> None:
    done = sluice(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Usage: sluice" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [("--by", "tenant,users", "'users' is none of tenant, project, key, model"),
     ("--per", "week", "'week' is none of")],
)  # fmt: skip
def test_usage_is_summed_by_what_there_is(
    tmp_path: Path, option: str, value: str, known: str
) -> None:
    line = complaint(sluice("usage", option, value, cwd=tmp_path))
    assert line.startswith(f"{option}: {known}")


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    """From a new process, as all others are meant to be: a fork of this one answers alike."""
    try:
        version = importlib.metadata.version("sluice")
    except importlib.metadata.PackageNotFoundError:
        version = ", from a folder where it is not installed"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "gateway", "--version"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert version in done.stdout
    assert sluice("--version", cwd=tmp_path).stdout == done.stdout


def test_its_module_is_a_program_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "models"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "LlamaForCausalLM" in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "-h"], ["key", "revoke", "--help"]])
def test_help_is_not_an_error(tmp_path: Path, arguments: list[str]) -> None:
    done = sluice(*arguments, cwd=tmp_path)
    assert done.returncode == 0
    assert "Usage: sluice" in done.stdout


SERVE_ERRORS = {
    "unknown key": ("[server]\nprot = 1\n[engine]\nmodel = 'm'", "server.prot", "port?"),
    "unknown section": ("[sever]\nport = 1\n[engine]\nmodel = 'm'", "[sever]", "server?"),
    "wrong type": ("[server]\nport = 'x'\n[engine]\nmodel = 'm'", "server.port", "int"),
    "no model": ("[server]\nport = 0\n", "engine.model is missing", "set it"),
    "impossible": ("[engine]\nmodel = 'm'\nblock_size = 0", "block_size", "at least 1"),
    "no TOML": ("[engine", "sluice.toml", "not valid TOML"),
}


@pytest.mark.parametrize("case", SERVE_ERRORS)
def test_a_wrong_settings_file(tmp_path: Path, case: str) -> None:
    text, cause, mend = SERVE_ERRORS[case]
    (tmp_path / "sluice.toml").write_text(text)
    line = complaint(sluice("serve", cwd=tmp_path))
    assert cause in line
    assert mend in line


def test_no_settings_file(tmp_path: Path) -> None:
    assert "sluice.toml: no such file" in complaint(sluice("serve", cwd=tmp_path))
    assert "x.toml: no such file" in complaint(sluice("serve", "--config", "x.toml", cwd=tmp_path))


@pytest.mark.pg
def test_a_model_and_its_revision_may_be_named_on_the_command_line(
    tmp_path: Path, pg_dsn: str
) -> None:
    (tmp_path / "sluice.toml").write_text(f"[server]\nport = 0\n[tenants]\ndsn = '{pg_dsn}'")
    secrets.create(tmp_path / ".sluice/secrets.json")
    arguments = ["serve", "--model", "owner/name", "--revision", "1.0"]
    home = {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    line = complaint(sluice(*arguments, cwd=tmp_path, **home))
    assert line.startswith("there is no folder 'owner/name', and as a hub model at revision '1.0'")
    assert "HF_HUB_OFFLINE" in line


@pytest.fixture
def dead_port() -> Iterator[int]:
    """Of a socket that does not listen: nobody else gets it meanwhile."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield unheard.getsockname()[1]


@pytest.mark.parametrize("command", [["migrate"], ["tenant", "list"], ["key", "list", "demo"]])
def test_postgres_is_down(tmp_path: Path, command: list[str], dead_port: int) -> None:
    dsn = f"postgresql://me:secret@127.0.0.1:{dead_port}/db"
    (tmp_path / "sluice.toml").write_text(f"[engine]\nmodel='m'\n[tenants]\ndsn='{dsn}'")
    line = complaint(sluice(*command, cwd=tmp_path))
    assert "does not answer" in line
    assert "tenants.dsn" in line
    assert "secret" not in line


@pytest.mark.pg
def test_postgres_refuses_the_login(tmp_path: Path, postgres_server: str) -> None:
    dsn = postgres_server.replace("//postgres@", "//nobody_we_know@")
    (tmp_path / "sluice.toml").write_text(f'[engine]\nmodel = "m"\n[tenants]\ndsn = "{dsn}"\n')
    line = complaint(sluice("migrate", cwd=tmp_path))
    assert 'refuses us: role "nobody_we_know" does not exist; correct tenants.dsn' in line


def test_settings_without_a_database(tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text("[engine]\nmodel='m'")
    line = complaint(sluice("tenant", "list", cwd=tmp_path))
    assert "sluice.toml: tenants.dsn is missing; set it" in line


def test_neither_settings_nor_a_demo(tmp_path: Path) -> None:
    line = complaint(sluice("tenant", "list", cwd=tmp_path))
    assert "--config or --data-dir" in line
    assert "`sluice demo`" in line
    assert list(tmp_path.iterdir()) == []


def test_two_databases_at_once(tmp_path: Path) -> None:
    line = complaint(sluice("migrate", "--config", "a", "--data-dir", "b", cwd=tmp_path))
    assert "give one of them" in line


def test_a_folder_that_is_no_demos(tmp_path: Path) -> None:
    line = complaint(sluice("tenant", "list", "--data-dir", str(tmp_path), cwd=tmp_path))
    assert "is not the folder of a demo; `sluice demo` makes one" in line
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_found_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = complaint(sluice("demo", "--port", port, "--data-dir", "d", cwd=tmp_path))
    assert f"127.0.0.1:{port} is taken; choose another --port" in line
    assert not (tmp_path / "d").exists()


def test_an_address_that_is_not_ours(tmp_path: Path) -> None:
    line = complaint(sluice("demo", "--host", "192.0.2.1", "--port", "0", cwd=tmp_path))
    assert "192.0.2.1:0 is not an address of this machine; choose another" in line


def test_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = complaint(sluice("demo", "--port", "0", "--data-dir", "file/x", cwd=tmp_path))
    assert "file/x cannot be made" in line
    assert "--data-dir" in line


@pytest.mark.parametrize("place", ["missing/ready.json", "folder"])
def test_a_ready_file_that_cannot_be_written_is_found_before_the_start(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "folder").mkdir()
    arguments = ["--port", "0", "--data-dir", "d", "--ready-file", place]
    line = complaint(sluice("demo", *arguments, cwd=tmp_path))
    assert f"{place} cannot be written; choose another --ready-file" in line
    assert not (tmp_path / "d" / "postgres").exists()


@pytest.mark.parametrize("command", [["chat", "hi"], ["bench", "-c", "1"]])
def test_no_server_answers(tmp_path: Path, command: list[str], dead_port: int) -> None:
    url = f"http://127.0.0.1:{dead_port}"
    line = complaint(sluice(*command, "--url", url, "--key", "k", cwd=tmp_path))
    assert f"{url} does not answer" in line
    assert "running?" in line


@pytest.mark.parametrize("command", [["chat", "hi"], ["bench"]])
def test_a_url_that_is_none(tmp_path: Path, command: list[str]) -> None:
    line = complaint(sluice(*command, "--url", "localhost:8000", "--key", "k", cwd=tmp_path))
    assert "--url must look like http://host:port" in line


@pytest.mark.parametrize("command", [["chat", "hi"], ["bench"]])
def test_a_server_without_a_key(tmp_path: Path, command: list[str]) -> None:
    done = sluice(*command, "--url", "http://127.0.0.1:1", cwd=tmp_path, SLUICE_API_KEY="")
    assert "--key or SLUICE_API_KEY" in complaint(done)


def test_chat_without_a_demo(tmp_path: Path) -> None:
    line = complaint(sluice("chat", "hi", cwd=tmp_path))
    assert "no demo of .sluice is running; start `sluice demo`" in line


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "http://127.0.0.1"), ("0.0.0.0", "http://127.0.0.1")]
)
def test_the_server_of_this_folders_settings(
    tmp_path: Path, dead_port: int, host: str, url: str
) -> None:
    settings = f"[engine]\nmodel = 'm'\n[server]\nhost = '{host}'\nport = {dead_port}\n"
    (tmp_path / "sluice.toml").write_text(settings)
    line = complaint(sluice("adapter", "list", "acme", cwd=tmp_path, SLUICE_API_KEY="k"))
    assert f"{url}:{dead_port} does not answer" in line
    assert "no key for" in complaint(sluice("chat", "hi", cwd=tmp_path, SLUICE_API_KEY=""))


def test_something_that_is_no_sluice_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = subprocess.Popen(
            [sys.executable, "-c", _GREETER, str(listener.fileno())],
            pass_fds=[listener.fileno()],
        )
        try:
            for command in (["chat", "hi"], ["bench", "-c", "1"]):
                line = complaint(sluice(*command, "--url", url, "--key", "k", cwd=tmp_path))
                assert url in line
                assert "Sluice server" in line
        finally:
            server.kill()
            server.wait()


_GREETER = """
import socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 404 Not Found\\r\\nContent-Length: 2\\r\\n\\r\\nno")
    connection.close()
"""


def test_importing_the_command_line_is_light() -> None:
    """`sluice --help` must not load the server, let alone torch."""
    code = (
        "import sys, gateway.cli;"
        "heavy = {'torch', 'transformers', 'numpy', 'asyncpg', 'starlette', 'uvicorn', 'alembic'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.stdout == "[]\n"


def test_the_demo_imports_neither_torch_nor_what_only_sign_in_needs() -> None:
    code = (
        "import sys, gateway.commands.demo;"
        "print({'torch', 'transformers', 'joserfc'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.stdout == "set()\n"
