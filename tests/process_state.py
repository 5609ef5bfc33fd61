"""Keeps process-wide settings the same before and after each test module.

Programs that a test runs in this process configure logging, the garbage collector, torch's threads
and precision, and the limit of open files; libraries that are imported on the way add to the
environment and to the places of modules. These settings are restored. A module that leaves any
other setting changed fails: a later test would depend on it, but only where both share a process.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = sorted(signal.valid_signals() - {signal.SIGINT, signal.SIGALRM})
"""Those two handlers are set for each test, by ``tests/conftest.py`` and by pytest-timeout."""

_LOGGERS = (
    None,
    "asyncio",
    "sse_starlette",
    "uvicorn",
    "uvicorn.access",
    "uvicorn.asgi",
    "uvicorn.error",
    "websockets",
)
"""What servers set up, ours and uvicorn's own; None is the root."""

_RUNNING = "PYTEST_CURRENT_TEST"
"""pytest sets it, and takes it away."""


@contextmanager
def kept() -> Iterator[None]:
    """Raises ``AssertionError`` at the end, naming what was left changed."""
    loggers, thresholds = _loggers(), gc.get_threshold()
    files, torch_settings = resource.getrlimit(resource.RLIMIT_NOFILE), _torch_settings()
    environment, places = dict(os.environ), sys.path[:]
    before = _held()
    yield
    _restore_loggers(loggers)
    gc.set_threshold(*thresholds)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    _restore_torch(torch_settings)
    _restore_environment(environment)
    sys.path[:] = places
    after = _held()
    left = {name: _change(was, after[name]) for name, was in before.items() if was != after[name]}
    assert not left, f"left changed for the tests that follow (before, after): {left}"


def _change(was: object, now: object) -> object:
    if isinstance(was, dict) and isinstance(now, dict):
        keys = [key for key in was | now if was.get(key) != now.get(key)]
        return {key: (was.get(key), now.get(key)) for key in keys}
    return was, now


def _restore_environment(before: dict[str, str]) -> None:
    for name in set(os.environ) - {*before, _RUNNING}:
        del os.environ[name]
    os.environ.update({name: was for name, was in before.items() if name != _RUNNING})


def _held() -> dict[str, object]:
    mask = os.umask(0)
    os.umask(mask)
    return {
        "working directory": os.getcwd(),
        "umask": mask,
        "signal handlers": {number: signal.getsignal(number) for number in _SIGNALS},
        "address space": resource.getrlimit(resource.RLIMIT_AS),
        "sys.argv": sys.argv[:],
        "sys.excepthook": sys.excepthook,
        "recursion limit": sys.getrecursionlimit(),
        "folder for temporary files": tempfile.gettempdir(),
        "timeout of sockets": socket.getdefaulttimeout(),
        "collector": (gc.isenabled(), gc.get_debug()),
        **_torch_defaults(),
    }


# ---- torch, where it is there -------------------------------------------------------------------


def _torch_settings() -> tuple[int, str] | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return torch.get_num_threads(), torch.get_float32_matmul_precision()


def _restore_torch(settings: tuple[int, str] | None) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if settings is not None:
        torch.set_num_threads(settings[0])
    torch.set_float32_matmul_precision("highest" if settings is None else settings[1])


def _torch_defaults() -> dict[str, object]:
    """As torch begins with where it is not imported yet: what imports it changes nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {"dtype": "torch.float32", "device": "cpu", "gradients": True}
    return {
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "gradients": torch.is_grad_enabled(),
    }


# ---- logging ------------------------------------------------------------------------------------


def _loggers() -> dict[logging.Logger, dict[str, Any]]:
    return {logger: _setup(logger) for logger in map(logging.getLogger, _LOGGERS)}


def _setup(logger: logging.Logger) -> dict[str, Any]:
    return {
        "level": logger.level,
        "handlers": logger.handlers[:],
        "filters": logger.filters[:],
        "propagate": logger.propagate,
        "disabled": logger.disabled,
    }


def _restore_loggers(before: dict[logging.Logger, dict[str, Any]]) -> None:
    for logger, was in before.items():
        logger.setLevel(was["level"])
        logger.handlers[:], logger.filters[:] = was["handlers"], was["filters"]
        logger.propagate, logger.disabled = was["propagate"], was["disabled"]
