"""The console script in a fork of this process: a process of its own, as in a terminal, without the
second of CPU time in which Python would import everything anew."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NoReturn

from gateway import cli

TIMEOUT_S = 60


def sluice(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``sluice ARGUMENTS`` to its end. env: beside this process's own environment.

    Warnings are errors in it, as in the tests. Must not be called while an event loop runs.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside other threads
            pid = os.fork()
        if pid == 0:
            _become(arguments, cwd, env or {}, out, err)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        told = []
        for file in (out, err):
            file.seek(0)
            told.append(file.read().decode())
    return subprocess.CompletedProcess(["sluice", *arguments], status, *told)


def _become(
    arguments: tuple[str, ...], cwd: Path, env: Mapping[str, str], out: BinaryIO, err: BinaryIO
) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(TIMEOUT_S)
        os.chdir(cwd)
        os.environ.update(env)
        for name in [*sys.modules]:
            if name.partition(".")[0] == "huggingface_hub":
                del sys.modules[name]  # it reads the environment when it is imported
        for file, number in ((out, 1), (err, 2)):
            os.dup2(file.fileno(), number)
        sys.stdin = open(os.devnull)  # noqa: SIM115 - the process ends with it
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
        logging.getLogger().handlers.clear()  # pytest's
        sys.argv = ["sluice", *arguments]
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
