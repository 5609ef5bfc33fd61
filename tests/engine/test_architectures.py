from __future__ import annotations

import importlib

import pytest

from engine.architectures import FALLBACK_TESTED, NATIVE
from engine.models.base import Model
from engine.models.config import ConfigFile
from tests.engine.models.families import CASES, FALLBACK_CASES


@pytest.mark.parametrize("architecture", NATIVE)
def test_every_native_architecture_has_its_file_and_its_test(architecture: str) -> None:
    module = importlib.import_module(f"engine.models.{NATIVE[architecture].module}")
    assert issubclass(module.ForCausalLM, Model)
    assert issubclass(module.ConfigFile, ConfigFile)
    assert architecture in {case.architecture for case in CASES}


def test_what_is_called_tested_is_tested() -> None:
    assert list(FALLBACK_TESTED) == [case.architecture for case in FALLBACK_CASES]
    assert not NATIVE.keys() & set(FALLBACK_TESTED)
