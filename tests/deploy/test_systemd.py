"""The units are what systemd takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing")
    for unit in UNITS.iterdir():
        # The program and the user of the unit are those of the operator's machine.
        text = re.sub(
            r"^ExecStart=.*$", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE
        )
        (tmp_path / unit.name).write_text(text.replace("User=sluice", "User=root"))
    command = ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
