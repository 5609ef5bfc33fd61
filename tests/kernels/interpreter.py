"""Runs Triton kernels on a CPU, by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys


def interpret(code: str) -> None:
    """Execute ``code`` in a process of its own: Triton decides when it is imported.

    On one thread: a step of a program is too small to divide.
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
