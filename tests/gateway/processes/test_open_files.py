from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.processes import open_files

FEW = 512


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit; the soft one is ``FEW``, until both are as they were."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_becomes_the_hard_one(hard: int, caplog: pytest.LogCaptureFixture) -> None:
    accepted = open_files.allow_connections(FEW)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert accepted == (FEW, open_files.MAX_BACKLOG)
    assert caplog.text == ""


def test_too_few_are_told_with_the_number_that_is_enough(
    hard: int, caplog: pytest.LogCaptureFixture
) -> None:
    accepted = open_files.allow_connections(hard)
    assert accepted.backlog == open_files.MAX_BACKLOG
    enough = hard - open_files.RESERVED - open_files.MAX_BACKLOG
    assert accepted.connections == enough
    assert f"enough for {enough} connections" in caplog.text
    assert f"server.max_connections = {hard}:" in caplog.text
    assert f"LimitNOFILE) to {2 * hard - enough}" in caplog.text


PROGRAM = """
import resource, sys
from gateway.processes import open_files
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
print(*open_files.allow_connections(10_000))
"""


def accepted_below(limit: int) -> subprocess.CompletedProcess[str]:
    """What a process accepts whose hard limit is this, which it could not raise again."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(limit)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("limit", [82, 128, 1024])
def test_all_connections_and_a_backlog_of_more_fit_beside_our_own_files(limit: int) -> None:
    connections, backlog = map(int, accepted_below(limit).stdout.split())
    assert connections > 0
    assert backlog > 0
    assert connections + backlog + open_files.RESERVED == limit


def test_a_limit_below_our_own_files_ends_the_start() -> None:
    ended = accepted_below(81)
    assert ended.returncode == 1
    assert "SetupError: this process may open 81 files, too few to serve" in ended.stderr
