"""Where the tokens that a step samples arrive in host memory, and how the host learns of it."""

from __future__ import annotations

import torch


class HostTokens:
    """Places that steps use in turns: to make one takes the host as long as to launch a kernel."""

    def __init__(self, device: torch.device, most_in_flight: int = 2) -> None:
        """most_in_flight: steps whose tokens may be on their way."""
        self._on_gpu = device.type == "cuda"
        self._places = [_Place(self._on_gpu) for _ in range(most_in_flight)]
        self._num_used = 0

    def take(self, num_tokens: int) -> torch.Tensor:
        """Where so many tokens will be: [num_tokens] int64 on the host, pinned if the device is a
        GPU. It is used again by a later step, when this one must be collected."""
        self._num_used += 1
        return self._place.tokens(num_tokens)

    def mark(self) -> torch.cuda.Event | None:
        """An event for what the device has to do until now, for the same step as the last ``take``;
        None on a CPU, which has done it."""
        event = self._place.event
        if event is not None:
            event.record()
        return event

    @property
    def _place(self) -> _Place:
        return self._places[self._num_used % len(self._places)]


class _Place:
    """Of the tokens of one step in flight."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self.event = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._memory = torch.empty(0, dtype=torch.int64)
        self._parts: dict[int, torch.Tensor] = {}

    def tokens(self, num: int) -> torch.Tensor:
        part = self._parts.get(num)
        if part is None:
            if num > len(self._memory):
                size = 1 << (num - 1).bit_length()
                self._memory = torch.empty(size, dtype=torch.int64, pin_memory=self._on_gpu)
                self._parts.clear()
            part = self._parts[num] = self._memory[:num]
        return part
