from __future__ import annotations

import msgspec
import pytest

from engine.config import EngineConfig
from engine.demo import MODEL_DIR
from gateway.fleet import identity
from gateway.fleet.identity import identify

USUAL = EngineConfig(model=str(MODEL_DIR))


@pytest.mark.parametrize(
    "setting",
    [{"max_model_len": 512}, {"kv_cache_dtype": "fp8"}, {"seed": 7}, {"dtype": "float32"}],
)
def test_engines_differ_by_what_outputs_depend_on(setting: dict[str, object]) -> None:
    other = identify(msgspec.structs.replace(USUAL, **setting))
    assert other.config_hash != identify(USUAL).config_hash
    assert other.text_hash == identify(USUAL).text_hash


def test_a_setting_that_only_one_version_knows_changes_nothing_by_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = identify(USUAL)
    monkeypatch.setattr(identity, "_SETTINGS", identity._SETTINGS[:-2])
    assert identify(USUAL) == before


def test_how_an_engine_runs_is_its_own() -> None:
    assert identify(msgspec.structs.replace(USUAL, max_num_seqs=3)) == identify(USUAL)
