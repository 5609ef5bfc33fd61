from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateway import wire_cases

NAMES = list(wire_cases.recorded())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("wire")
    return asyncio.run(wire_cases.record(folder))


def test_every_case_is_recorded(found: dict[str, str]) -> None:
    assert list(found) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_as_recorded(found: dict[str, str], name: str) -> None:
    assert found[name].splitlines() == wire_cases.recorded()[name].splitlines()
