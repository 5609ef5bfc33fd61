from __future__ import annotations

import pytest
import torch

from engine.executors.base import Executors
from engine.executors.layers import LayerByLayer
from engine.layers.attention import GroupStep, StepContext
from engine.models.base import Model
from engine.runner.block_copies import BlockCopies, as_stack
from engine.runner.drafts.features import AuxBuffers, FeatureCache, kept_size, watched
from engine.spec.draft_network import DraftNetwork

SIZE, BLOCK_SIZE = 3, 4
CPU = torch.device("cpu")


class Sums(DraftNetwork):
    """The feature is one more than what it is made of, added up."""

    feature_size = aux_size = SIZE

    def __init__(self, aux_layers: tuple[int, ...]) -> None:
        self.aux_layers = aux_layers
        self.num_tokens: list[int] = []
        """Of each call."""

    def feature(self, source: torch.Tensor) -> torch.Tensor:
        self.num_tokens.append(len(source))
        return sum(source.split(SIZE, -1), start=torch.ones(1))


def cache(network: DraftNetwork) -> FeatureCache:
    return FeatureCache(16, BLOCK_SIZE, network, dtype=torch.float32, device=CPU)


def keep(features: FeatureCache, slots: list[int], value: float) -> None:
    width = SIZE * max(1, len(features._network.aux_layers))
    features.keep(torch.tensor(slots), torch.full((len(slots), width), value))


def read(features: FeatureCache, *slots: int) -> list[float]:
    found = features.read(torch.tensor(slots))
    assert found.shape == (len(slots), SIZE)
    assert (found == found[:, :1]).all()
    return found[:, 0].tolist()


@pytest.mark.parametrize("layers", [(), (1, 2), (2,)])
def test_each_slot_has_its_feature_and_padding_has_none(layers: tuple[int, ...]) -> None:
    features = cache(Sums(layers))
    sources = max(1, len(layers))
    unwritten = 1.0 if layers else 0.0
    keep(features, [0, 1], 1.0)
    keep(features, [1, -1, 5], 2.0)
    keep(features, [-1, -1], 4.0)
    assert read(features, 0, 1, 5, -1, 7) == [
        1.0 + sources,
        1 + 2 * sources,
        1 + 2 * sources,
        0,
        unwritten,
    ]
    BlockCopies([as_stack(features.blocks[None])]).copy([(0, 2, 1)])
    assert read(features, 8, 9) == [1 + sources, unwritten]


def test_what_is_cleared_is_as_if_it_had_never_been_kept() -> None:
    features = cache(Sums(()))
    keep(features, [0, 1, 2], 1.0)
    features.clear(torch.tensor([1, 2]))
    assert read(features, 0, 1, 2) == [2.0, 0.0, 0.0]


def test_a_cpu_makes_features_of_auxiliary_states_only_where_somebody_asks() -> None:
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


def test_steps_without_padding_need_not_look_for_it() -> None:
    for layers in ((), (1, 2)):
        padded, features = cache(Sums(layers)), cache(Sums(layers))
        sources = torch.arange(3.0)[:, None].repeat(1, SIZE * max(1, len(layers)))
        padded.keep(torch.tensor([4, 0, 9]), sources)
        features.keep(torch.tensor([4, 0, 9]), sources, is_padded=False)
        assert (features.blocks == padded.blocks).all()


class Target(Model):
    """The input of layer i is the token id plus i; the hidden state is that of layer 10."""

    def __init__(self) -> None:
        """It has no weights."""

    def hidden_states(self, token_ids: torch.Tensor, step: StepContext) -> torch.Tensor:
        for layer, kept in step.aux_hidden_states.items():
            kept.copy_((token_ids + layer)[:, None].expand(-1, SIZE))
        return step.kept((token_ids + 10.0)[:, None].expand(-1, SIZE))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def no_attention(*args: object, **kwargs: object) -> torch.Tensor:
    raise AssertionError("the target has none")


@pytest.mark.parametrize("layers", [(), (1, 4)])
@pytest.mark.parametrize("use", ["eager", "recorded", "fused"])
def test_whatever_runs_the_target_its_features_are_kept(layers: tuple[int, ...], use: str) -> None:
    network = Sums(layers)
    features = FeatureCache(1024, BLOCK_SIZE, network, dtype=torch.float32, device=CPU)
    plain = LayerByLayer(Target())
    executors = watched(Executors(plain, plain, plain), network, features)
    assert executors.resting == Executors(plain, plain, plain)
    executor = getattr(executors, use)
    each = [torch.arange(0, 7), torch.arange(100, 103), torch.arange(200, 800)]
    for token_ids in each:
        step = StepContext(token_ids, [GroupStep(token_ids, no_attention)], [])
        assert executor.serves(step)
        assert executor.hidden_states(token_ids, step)[:, 0].tolist() == (token_ids + 10).tolist()
    for token_ids in each:
        found = features.read(token_ids)[:, 0]
        expected = 1 + (2 * token_ids + 5 if layers else token_ids + 10)
        assert (found == expected).all()


def test_auxiliary_states_of_short_steps_share_memory() -> None:
    network = Sums((1, 4))
    features = FeatureCache(1024, BLOCK_SIZE, network, dtype=torch.float32, device=CPU)
    buffers = AuxBuffers(network, features)
    first, again, other, long = (buffers.of(n).joined for n in (3, 3, 512, 513))
    assert first.data_ptr() == again.data_ptr() == other.data_ptr() != long.data_ptr()
    assert [each.shape for each in (first, other, long)] == [(n, 2 * SIZE) for n in (3, 512, 513)]
    assert len(buffers._buffers) == 2
