from __future__ import annotations

import subprocess
import sys


def test_the_package_never_imports_torch_nor_its_callers() -> None:
    program = (
        "import sys, grammar.compiler, grammar.matcher\n"
        "bad = {'torch', 'transformers', 'engine', 'gateway', 'tenants'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
