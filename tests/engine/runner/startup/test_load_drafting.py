"""What a configuration asks of drafting, and what is refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig, ModelImpl
from engine.errors import ModelLoadError
from engine.runner import TorchRunner, load_runner
from engine.spec.config import SpeculativeConfig
from tests.engine.spec.tiny_heads import save_tiny

VOCAB_SIZE = 12
NUM_DRAFTS = 3


class Networks:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options = save_tiny(folder, VOCAB_SIZE)

    def load(
        self,
        method: str,
        *,
        num_tokens: int = NUM_DRAFTS,
        model_impl: ModelImpl = "auto",
        **options: Any,
    ) -> TorchRunner:
        speculative = SpeculativeConfig(
            **self.options[method] | options, num_speculative_tokens=num_tokens, adaptive=False
        )
        config = EngineConfig(
            model=str(self.folder / "target"),
            model_impl=model_impl,
            device="cpu",
            max_num_seqs=4,
            num_gpu_blocks_override=16,
            num_threads=1,
            speculative_config=speculative,
        )
        return load_runner(config)


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Networks:
    return Networks(tmp_path_factory.mktemp("networks"))


@pytest.mark.parametrize(
    ("method", "num_lookahead_tokens"),
    [
        ("ngram", 0),
        ("suffix", 0),
        ("medusa", 0),
        ("eagle", NUM_DRAFTS),
        ("eagle3", NUM_DRAFTS),
        ("draft_model", NUM_DRAFTS),
    ],
)
def test_chains_of_drafts_write_ahead(
    networks: Networks, method: str, num_lookahead_tokens: int
) -> None:
    assert networks.load(method).num_lookahead_tokens == num_lookahead_tokens


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa", "draft_model"])
def test_a_folder_that_is_not_there(networks: Networks, method: str) -> None:
    with pytest.raises(ModelLoadError, match=r"there is no folder .*/gone': give"):
        networks.load(method, model=str(networks.folder / "gone"))


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa"])
def test_a_folder_without_a_readable_configuration(
    networks: Networks, tmp_path: Path, method: str
) -> None:
    folder = shutil.copytree(networks.folder / method, tmp_path / method)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config.json"):
        networks.load(method, model=str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"config.json"):
        networks.load(method, model=str(folder))


def test_more_drafts_than_heads(networks: Networks) -> None:
    with pytest.raises(ModelLoadError, match=r"has 3 heads: lower .*num_speculative_tokens from 4"):
        networks.load("medusa", num_tokens=4)


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa"])
def test_heads_read_features_that_only_our_own_models_show(networks: Networks, method: str) -> None:
    with pytest.raises(ModelLoadError, match=f"'{method}' needs a model with a native"):
        networks.load(method, model_impl="transformers")
