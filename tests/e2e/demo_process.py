"""``sluice demo`` as its user runs it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.e2e.server_process import ServerProcess


class DemoProcess(ServerProcess):
    """A running (or starting) demo. Use it as a context manager: nothing of it is left behind."""

    def __init__(
        self, data_dir: Path, *arguments: str, name: str = "demo", max_files: int | None = None
    ) -> None:
        self.data_dir = data_dir
        self._ready_file = data_dir.with_name(f"{name}-ready.json")
        self._ready_file.unlink(missing_ok=True)
        super().__init__(
            *("-m", "gateway", "demo", "--port", "0", "--data-dir", str(data_dir)),
            *("--ready-file", str(self._ready_file), *arguments),
            output=data_dir.with_name(f"{name}-output.txt"),
            max_files=max_files,
        )

    def __enter__(self) -> DemoProcess:
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._ready_file.unlink(missing_ok=True)

    def wait_ready(self) -> dict[str, Any]:
        """The contents of the ready file, once it is there."""
        while not self._ready_file.exists():
            self.is_starting()
        self.ready_after_s = time.monotonic() - self.started_at
        self.look()
        ready: dict[str, Any] = json.loads(self._ready_file.read_text())
        return ready

    @property
    def ready_file(self) -> Path:
        return self._ready_file


def maps_torch(pid: int) -> bool:
    """Whether a process has torch's library in its memory."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # another account's process, or gone
        return False
