from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from engine.runner.features import FeatureCache, kept_size
from engine.spec.draft_network import DraftNetwork

SIZE, BLOCK_SIZE = 3, 4
CPU = torch.device("cpu")


class Sums(DraftNetwork):
    """The feature is what went into the tapped layers, added up, or the last hidden state."""

    feature_size = tapped_size = SIZE

    def __init__(self, tapped_layers: tuple[int, ...]) -> None:
        self.tapped_layers = tapped_layers
        self.num_tokens: list[int] = []
        """Of each call."""

    def feature(self, hidden: torch.Tensor, taps: Mapping[int, torch.Tensor]) -> torch.Tensor:
        self.num_tokens.append(len(hidden))
        if not taps:
            return hidden
        return torch.stack([taps[layer] for layer in self.tapped_layers]).sum(0)


def cache(network: DraftNetwork) -> FeatureCache:
    return FeatureCache(16, BLOCK_SIZE, network, dtype=torch.float32, device=CPU)


def keep(features: FeatureCache, slots: list[int], value: float) -> None:
    full, layers = torch.full((len(slots), SIZE), value), features._network.tapped_layers
    taps = {layer: full * 10 ** (layer - 1) for layer in layers}
    features.keep(torch.tensor(slots), 100 * full, taps)


def read(features: FeatureCache, *slots: int) -> list[float]:
    found = features.read(torch.tensor(slots))
    assert found.shape == (len(slots), SIZE)
    assert (found == found[:, :1]).all()
    return found[:, 0].tolist()


@pytest.mark.parametrize("layers", [(), (1, 2), (2,)])
def test_each_slot_has_its_feature_and_padding_has_none(layers: tuple[int, ...]) -> None:
    features = cache(Sums(layers))
    unit = {(): 100.0, (1, 2): 11.0, (2,): 10.0}[layers]
    keep(features, [0, 1], 1.0)
    keep(features, [1, -1, 5], 2.0)
    keep(features, [-1, -1], 4.0)
    assert read(features, 0, 1, 5, -1, 7) == [unit, 2 * unit, 2 * unit, 0.0, 0.0]
    features.copy_block(0, 2, 1)
    assert read(features, 8, 9) == [unit, 0.0]


def test_a_cpu_makes_features_of_taps_only_where_somebody_asks() -> None:
    network = Sums((1, 2))
    features = cache(network)
    for _ in range(5):
        keep(features, [0, 1, 2], 1.0)
    assert network.num_tokens == []
    read(features, 0, 2)
    assert network.num_tokens == [2]
    assert kept_size(network, CPU) == features.blocks.shape[-1] == 2 * SIZE


@pytest.mark.parametrize(("layers", "device"), [((), "cpu"), ((1, 2), "cuda")])
def test_elsewhere_features_are_kept_as_they_are(layers: tuple[int, ...], device: str) -> None:
    assert kept_size(Sums(layers), torch.device(device)) == SIZE
    network = Sums(())
    keep(cache(network), [0], 1.0)
    assert network.num_tokens == [1]
