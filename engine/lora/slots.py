"""The adapters of a model: all in host memory, those used last in slots on the device."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from engine.layers.linear import Linear
from engine.lora.adapter import Adapter, load_adapter
from engine.lora.places import Place, find_places
from engine.lora.product import LowRankAddition, LowRankPart, StepAdapters, groups_of, runs_of
from engine.models.base import Model


class AdapterSlots:
    """Adds itself to the linear layers of a model, whose weights are there and packed."""

    def __init__(
        self,
        model: Model,
        *,
        max_loras: int,
        max_lora_rank: int,
        max_num_rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """max_loras: slots, so adapters in one step at most."""
        self.max_loras = max_loras
        self._max_rank = max_lora_rank
        self._dtype, self._device = dtype, device
        self._place_of = model.place_of
        self._places = find_places(model)
        self._adapters: dict[str, Adapter] = {}
        self._slots: OrderedDict[str, int] = OrderedDict()
        """Of the adapters on the device, the one used last at the end."""
        self._free = list(range(max_loras - 1, -1, -1))
        self.num_swaps = 0
        """Copies of an adapter into a slot."""
        self._row_adapters = [""] * max_num_rows
        self._step = StepAdapters()
        self._grouped = device.type == "cuda" and importlib.util.find_spec("triton") is not None
        self._parts = self._add_to_layers()

    def _add_to_layers(self) -> dict[str, LowRankPart]:
        parts: dict[str, LowRankPart] = {}
        of_layer: dict[Linear, list[LowRankPart]] = {}
        for name, place in self._places.items():
            parts[name] = self._part(place)
            of_layer.setdefault(place.linear, []).append(parts[name])
        for linear, own in of_layer.items():
            linear.addition = LowRankAddition(own, self._step)
        return parts

    def _part(self, place: Place) -> LowRankPart:
        return LowRankPart(
            place.columns,
            place.in_features,
            self.max_loras,
            self._max_rank,
            dtype=self._dtype,
            device=self._device,
        )

    # ---- adapters come and go -------------------------------------------------------------------

    def read(self, folder: Path) -> Adapter:
        """Into host memory, checked. ``AdapterLoadError`` says what does not fit.

        Changes nothing here: it may be called from any thread.
        """
        return load_adapter(
            folder,
            self._places,
            max_rank=self._max_rank,
            dtype=self._dtype,
            place_of=self._place_of,
        )

    def keep(self, name: str, adapter: Adapter) -> None:
        """Rows may have it from now on."""
        assert name not in self._adapters
        self._adapters[name] = adapter

    def drop(self, name: str) -> None:
        """Forget an adapter that no request uses any more."""
        del self._adapters[name]
        slot = self._slots.pop(name, None)
        if slot is not None:
            self._free.append(slot)

    @property
    def resident(self) -> list[str]:
        """The adapters on the device, the one that goes first in front."""
        return list(self._slots)

    def step_bytes(self, num_tokens: int) -> int:
        """Memory that the products of so many tokens take at a time, at most."""
        widest = max(place.out_features for place in self._places.values())
        # A product and its sum with the output.
        return num_tokens * 2 * (widest + self._max_rank) * self._dtype.itemsize

    # ---- a step ---------------------------------------------------------------------------------

    def admit(self, row: int, name: str) -> None:
        """name: "" for none."""
        self._row_adapters[row] = name

    @contextmanager
    def applied(
        self, rows: npt.NDArray[np.int64], query_lens: npt.NDArray[np.int64]
    ) -> Iterator[None]:
        """A forward pass in here computes ``query_lens[i]`` tokens of ``rows[i]``, in their order,
        each row with its adapter."""
        names = [self._row_adapters[row] for row in rows.tolist()]
        slots = self._bring(names)
        of_tokens = np.array([slots.get(name, -1) for name in names]).repeat(query_lens)
        if self._grouped:
            self._step.tokens = groups_of(of_tokens, self.max_loras, self._device)
        else:
            self._step.tokens = runs_of(of_tokens, self._device)
        try:
            yield
        finally:
            self._step.tokens = None

    def serves(self, rows: npt.NDArray[np.int64]) -> bool:
        """Whether any of the rows has an adapter."""
        return any(self._row_adapters[row] for row in rows.tolist())

    def _bring(self, names: Sequence[str]) -> dict[str, int]:
        """The slots of these adapters, which are all on the device then."""
        wanted = dict.fromkeys(name for name in names if name)
        assert len(wanted) <= self.max_loras, "more adapters in a step than slots"
        for name in wanted:
            if name in self._slots:
                self._slots.move_to_end(name)
        for name in wanted:
            if name not in self._slots:
                # Those wanted stand at the end: the first is never one of them.
                slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1]
                self._slots[name] = slot
                self._fill(slot, self._adapters[name])
        return {name: self._slots[name] for name in wanted}

    def _fill(self, slot: int, adapter: Adapter) -> None:
        self.num_swaps += 1
        # On the stream of the steps: one in flight still finds what was there before.
        for name, part in self._parts.items():
            pair = adapter.pairs.get(name)
            if pair is None:
                part.clear(slot)
            else:
                part.fill(slot, pair.down, pair.up)
