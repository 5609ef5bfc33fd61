from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import grammar

MODULES = [
    module.name
    for module in pkgutil.walk_packages(grammar.__path__, "grammar.")
    # The adapters of engines that bring torch along, or are that engine.
    if not module.name.startswith("grammar.backends.")
]


def imported_by(*modules: str) -> set[str]:
    program = f"import sys, {', '.join(modules)}\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return {name.partition(".")[0] for name in result.stdout.split()}


def test_the_package_imports_neither_torch_nor_an_engine_nor_its_callers() -> None:
    assert "grammar.compiler" in MODULES
    heavy = {"torch", "transformers", "xgrammar", "llguidance", "outlines_core"}
    heavy.add("rfc3987_syntax")  # jsonschema's, if it is installed: it takes a second
    assert imported_by(*MODULES).isdisjoint(heavy | {"engine", "gateway", "tenants", "kernels"})


@pytest.mark.parametrize("backend", ["llguidance", "outlines"])
def test_two_backends_do_without_torch(backend: str) -> None:
    assert imported_by(f"grammar.backends.{backend}").isdisjoint({"torch", "transformers"})
