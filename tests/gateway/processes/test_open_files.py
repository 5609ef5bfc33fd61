from __future__ import annotations

import resource
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


def test_as_many_as_connections_need(hard: int, caplog: pytest.LogCaptureFixture) -> None:
    open_files.allow_connections(FEW)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (FEW + open_files.RESERVED, hard)
    assert caplog.text == ""


def test_a_limit_that_is_enough_stays(hard: int) -> None:
    open_files.allow_connections(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (FEW, hard)


def test_too_few_are_told_with_the_number_that_is_enough(
    hard: int, caplog: pytest.LogCaptureFixture
) -> None:
    open_files.allow_connections(hard)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert f"server.max_connections = {hard}: raise" in caplog.text
    assert f"LimitNOFILE) to {hard + open_files.RESERVED}" in caplog.text
