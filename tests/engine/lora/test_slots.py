from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.errors import AdapterLoadError
from engine.layers.linear import Linear
from engine.lora.slots import AdapterSlots
from engine.models.base import Model
from engine.weights.load import load_weights
from kernels import ops
from kernels.lora import FEW_TOKENS
from tests.engine.lora.making import write_adapter
from tests.engine.lora.test_adapter import make_model
from tests.engine.runner.tiny_llama import save_tiny_llama

NAMES = ("one", "two", "three")
ONE_TOKEN = np.array([1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slots")
    save_tiny_llama(folder / "base")
    for seed, name in enumerate(NAMES):
        targets = ("q_proj", "up_proj") if name == "two" else ("v_proj", "gate_proj", "up_proj")
        write_adapter(
            folder / name, folder / "base", rank=4 * (seed + 1), targets=targets, seed=seed
        )
    return folder


@pytest.fixture
def model(folder: Path) -> Model:
    model = make_model(folder / "base")
    load_weights(model, folder / "base", tied=False)
    return model


@pytest.fixture
def slots(model: Model, folder: Path) -> AdapterSlots:
    """Two, for three adapters: row i has adapter i; row 3 has none."""
    slots = AdapterSlots(
        model,
        max_loras=2,
        max_lora_rank=12,
        max_num_rows=4,
        max_graph_tokens=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for row, name in enumerate(NAMES):
        slots.keep(name, slots.read(folder / name))
        slots.admit(row, name)
    return slots


def expected(slots: AdapterSlots, name: str, adapter: str, x: torch.Tensor) -> torch.Tensor:
    """What the adapter adds to the target module, from its matrices in host memory."""
    pair = slots._adapters[adapter].pairs.get(name)
    if pair is None:
        return torch.zeros(len(x), slots._modules[name].out_features)
    return x @ pair.down.T @ pair.up.T


def projection(model: Model) -> Linear:
    layer: Linear = model.model.layers[1].mlp.gate_up_proj  # type: ignore[attr-defined]
    return layer


def check(slots: AdapterSlots, model: Model, rows: list[int], lens: list[int]) -> None:
    linear = projection(model)
    x = torch.randn(sum(lens), linear.in_features, generator=torch.Generator().manual_seed(7))
    base = linear(x)
    with slots.applied((np.array(rows), np.array(lens))):
        adapted, gated = linear(x), linear.gated(x)
    first = 0
    for row, length in zip(rows, lens, strict=True):
        own = slice(first, first + length)
        first += length
        if row == 3:
            assert torch.equal(adapted[own], base[own])
            continue
        added = [
            expected(slots, f"model.layers.1.mlp.{part}", slots._row_adapters[row], x[own])
            for part in ("gate_proj", "up_proj")
        ]
        torch.testing.assert_close(adapted[own] - base[own], torch.cat(added, 1))
    gate, up = adapted.chunk(2, -1)
    torch.testing.assert_close(gated, torch.nn.functional.silu(gate) * up)
    assert torch.equal(linear(x), base)


def use(slots: AdapterSlots, *rows: int) -> None:
    with slots.applied((np.array(rows), np.ones(len(rows), np.int64))):
        pass


def test_each_row_has_its_own_adapter_or_none(slots: AdapterSlots, model: Model) -> None:
    check(slots, model, [3, 0, 1, 0, 3], [2, 3, 1, 4, 1])


def test_the_last_layer_may_compute_some_of_the_tokens(slots: AdapterSlots, model: Model) -> None:
    linear = projection(model)
    x = torch.randn(9, linear.in_features, generator=torch.Generator().manual_seed(7))
    step = np.array([0, 3, 1]), np.array([4, 2, 3])
    ends = np.array([3, 1]), np.array([1, 1])
    with slots.applied(step, ends):
        every, some = linear(x), linear(x[[5, 8]])
        assert linear.addition is not None
        assert linear.addition.operands(9) is None, "in float32"
    torch.testing.assert_close(some, every[[5, 8]])
    with slots.applied(step), pytest.raises(AssertionError):
        linear(x[:2])


def test_a_slot_holds_nothing_of_the_adapter_before(slots: AdapterSlots, model: Model) -> None:
    for rows in ([0, 2], [1], [2, 1], [0, 1], [2, 0]):
        check(slots, model, rows, [2] * len(rows))


def test_the_adapter_used_least_recently_goes_first(slots: AdapterSlots) -> None:
    names = {adapter.digest: name for name, adapter in slots._adapters.items()}

    def resident() -> list[str]:
        return [names[digest] for digest in slots.resident]

    use(slots, 0)
    use(slots, 1)
    assert resident() == ["one", "two"]
    use(slots, 0)
    use(slots, 2)
    assert resident() == ["one", "three"]
    use(slots, 1, 2)
    assert resident() == ["three", "two"]
    slots.drop("three")
    use(slots, 0)
    assert resident() == ["two", "one"]
    assert slots.num_swaps == 5


def test_names_of_one_content_share_a_slot_until_the_last_is_gone(
    slots: AdapterSlots, model: Model, folder: Path
) -> None:
    slots.keep("again", slots.read(folder / "one"))
    slots.admit(3, "again")
    assert slots._adapters["again"] is slots._adapters["one"]
    use(slots, 0, 1, 3)
    assert slots.num_swaps == len(slots.resident) == 2
    slots.admit(3, "")
    slots.drop("one")
    slots.admit(0, "again")
    check(slots, model, [0, 3], [2, 2])
    assert slots.num_swaps == 2
    slots.drop("again")
    assert len(slots.resident) == 1
    use(slots, 1, 2)
    assert slots.num_swaps == 3


def test_more_adapters_than_slots_are_a_mistake_of_the_plan(slots: AdapterSlots) -> None:
    with pytest.raises(AssertionError), slots.applied((np.arange(3), np.ones(3, np.int64))):
        pass


def test_a_step_without_adapters_is_the_bases_own(slots: AdapterSlots, model: Model) -> None:
    assert not slots.serves(np.array([3]))
    assert slots.serves(np.array([3, 1]))
    addition = projection(model).addition
    assert addition is not None
    assert not addition.is_active
    with slots.applied((np.array([1]), ONE_TOKEN)):
        assert addition.is_active
    with pytest.raises(ZeroDivisionError), slots.applied((np.array([1]), ONE_TOKEN)):
        raise ZeroDivisionError
    assert not addition.is_active


def test_warming_up_computes_each_kind_of_layer_and_leaves_nothing(
    slots: AdapterSlots, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = set()

    monkeypatch.setattr(ops, "shrink_lora", lambda x, *_: x)
    monkeypatch.setattr(
        ops,
        "expand_lora",
        lambda out, low, *_: shapes.add((len(out), out.shape[1], *low.shape)),
    )
    slots.warm_up()
    linears = {module.linear for module in slots._modules.values()}
    kinds = {(sum(linear.parts.values()), linear.in_features) for linear in linears}
    nums = (1, FEW_TOKENS + 1)
    assert shapes == {(num, out, num, inner) for num in nums for out, inner in kinds}
    assert not slots.resident
    addition = projection(model).addition
    assert addition is not None
    assert not addition.is_active


def test_what_cannot_be_read_leaves_nothing(slots: AdapterSlots, folder: Path) -> None:
    write_adapter(folder / "wide", folder / "base", rank=16)
    before = set(slots._adapters)
    with pytest.raises(AdapterLoadError, match="r is 16, but max_lora_rank is 12"):
        slots.read(folder / "wide")
    assert set(slots._adapters) == before
    digest = slots.read(folder / "one").digest
    slots.drop("one")
    slots.keep("one", slots.read(folder / "one"))
    assert slots._adapters["one"].digest == digest
