"""Runs Triton kernels on a CPU, by Triton's interpreter.

Triton decides when it is imported whether it interprets, so a process of its own imports it, once
for all tests of this process, and runs each check in a fork.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import traceback


def interpret(code: str) -> None:
    """Execute ``code`` in a process whose Triton interprets.

    On one thread: a step of a program is too small to divide.
    """
    process = _process()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(code) + "\n")
    process.stdin.flush()
    error = json.loads(process.stdout.readline() or '"the interpreter has ended"')
    assert not error, error


@functools.cache
def _process() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kernels.interpreter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    atexit.register(process.communicate)  # it ends with its input
    return process


def serve() -> None:
    """Answer each line, which has code, with a line that has its error, or nothing."""
    import torch
    import triton  # noqa: F401 - what each fork would import anew

    torch.testing.assert_close(torch.ones(1), torch.ones(1))  # imports at its first call
    for line in sys.stdin:
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                _end_with(json.loads(line))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            said = output.read().decode()
        print(json.dumps(f"exit status {status}\n{said}" if status else ""), flush=True)


def _end_with(code: str) -> None:
    status = 1
    try:
        exec(code, {})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
