from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from grammar import libraries
from grammar.audit import BACKENDS
from grammar.compiler import GrammarChecker
from grammar.errors import CompilerUnavailable
from grammar.jobs import CompileJob, Elsewhere
from grammar.libraries import LIBRARIES, Library
from grammar.pool import WorkerPool
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary

Install = Callable[[str, str, str], None]
INTEGER = CompileJob(GrammarSpec.from_schema({"type": "integer"}), False)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a library before the real one, here and in workers: its name, version and source."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, version: str, source: str) -> None:
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(source)

    return write


def test_every_backend_has_its_library_and_the_project_asks_for_it() -> None:
    assert set(LIBRARIES) == set(BACKENDS)
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    for library in LIBRARIES.values():
        assert f"{library.distribution}>={library.minimum}" in project["dependencies"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_installed_is_good_enough(backend: str, vocabulary: Vocabulary) -> None:
    assert libraries.adapter(backend)(vocabulary).name == backend


def test_a_missing_one_is_named_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIBRARIES, "llguidance", Library("no-such-package", "1.2", "X"))
    with pytest.raises(CompilerUnavailable, match=r"no-such-package is not installed") as caught:
        libraries.adapter("llguidance")
    assert "pip install 'no-such-package>=1.2'" in str(caught.value)


@pytest.mark.parametrize(
    ("module", "mend"),
    [
        ("pydantic_core", "pip install 'pydantic-core>=2.0'"),
        ("pydantic_core.tests", "pip install 'pydantic-core>=2.0'"),
        ("unheard_of", "pip install 'llguidance>=1.8'"),
    ],
)
def test_what_a_library_misses_itself_is_what_to_install(
    install: Install, monkeypatch: pytest.MonkeyPatch, module: str, mend: str
) -> None:
    install("llguidance", "9.0", "")
    needs = ["numpy", "pydantic-core>=2.0 ; python_version > '3'"]
    monkeypatch.setattr(metadata, "requires", lambda name: needs)

    def fail(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(CompilerUnavailable) as caught:
        libraries.adapter("llguidance")
    assert str(caught.value).endswith(f"9.0 does not load (No module named '{module}'): {mend}")


@pytest.mark.parametrize(
    ("version", "source", "cause"),
    [
        ("1.6.1", "", r"llguidance 1\.6\.1 is too old .* pip install 'llguidance>=1\.8'"),
        ("1.7.99", "", r"too old"),
        ("2.0", "raise ImportError('libgone.so')", r"2\.0 does not load \(libgone\.so\): pip"),
        ("1.10", "raise OSError('bad ELF')", r"does not load \(bad ELF\)"),
        ("1.8", "raise KeyError('surprise')", r"ended with code 1 as it started: KeyError: 'sur"),
        ("1.8", "import os\nos.abort()", r"was killed by signal 6 as it started"),
        ("1.8", "import sys\nsys.exit()", r"ended with code 0 as it started: it said nothing"),
        ("1.8", "import time\ntime.sleep(60)", r"did not start within 3 s"),
        ("1.8", "print('chatter ' * 9999)\nimport sys\nsys.exit('no licence')", r": no licence"),
    ],
)
def test_a_worker_says_why_it_cannot_start(
    vocabulary: Vocabulary, install: Install, version: str, source: str, cause: str
) -> None:
    install("llguidance", version, source)
    timeout_s = 3 if "sleep" in source else 60
    with WorkerPool(vocabulary, backends=["llguidance"], load_timeout_s=timeout_s) as pool:
        with pytest.raises(CompilerUnavailable, match=cause):
            pool.compile(INTEGER)
        assert pool.pids == []


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("raise ImportError('no libfoo')", "no libfoo"),
        ("import time; time.sleep(60)", "within 3 s"),
    ],
)
def test_one_that_is_loaded_later_may_fail_later(
    vocabulary: Vocabulary, install: Install, source: str, cause: str
) -> None:
    """And its time is its own, not the grammar's."""
    install("llguidance", "9.0", source)
    bounded = CompileJob(GrammarSpec.from_schema({"type": "integer", "minimum": 3}), False)
    order = ["outlines", "llguidance"]
    load_timeout_s = 3 if "sleep" in source else 60
    with (
        WorkerPool(vocabulary, backends=order, timeout_s=1) as first,
        WorkerPool(
            vocabulary, backends=order, backend=order[1], load_timeout_s=load_timeout_s
        ) as later,
    ):
        assert first.compile(INTEGER).backend == "outlines"
        handed_on = first.compile(bounded)
        assert isinstance(handed_on, Elsewhere)
        with pytest.raises(CompilerUnavailable, match=cause):
            later.compile(handed_on.job)
        assert first.compile(INTEGER).backend == "outlines"


def test_whoever_runs_the_server_hears_of_it_at_the_start(
    vocabulary: Vocabulary, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("llguidance", "1.6.1", "")
    checker = GrammarChecker(vocabulary)
    with pytest.raises(CompilerUnavailable):
        checker.start().result()
    checker.close()
    assert "llguidance 1.6.1 is too old" in caplog.text
    assert "pip install" in caplog.text
