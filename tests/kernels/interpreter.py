"""Runs Triton kernels on a CPU, by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys


def interpret(code: str) -> None:
    """Execute ``code`` in a process of its own: Triton decides when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
