from __future__ import annotations

import logging

import pytest
import torch

from engine.runner.graphs.fused import log_faster, longest_faster


class Device:
    """Something whose steps take as long as they are said to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, base_s: float, token_s: float) -> None:
        """Of one kernel; layer by layer a step takes 1 s, and 1 ms for each token."""
        self.base_s, self.token_s = base_s, token_s
        self.now_s, self.seq_len = 0.0, 0
        self.asked: list[int] = []
        monkeypatch.setattr("engine.runner.graphs.fused.time.perf_counter", lambda: self.now_s)

    def fused(self) -> None:
        self.now_s += self.base_s + self.token_s * self.seq_len

    def layers(self) -> None:
        self.now_s += 1 + 1e-3 * self.seq_len

    def prepare(self, seq_len: int) -> None:
        self.asked.append(seq_len)
        self.seq_len = seq_len

    def longest_faster(self, max_len: int) -> int:
        return longest_faster(
            self.fused,
            self.layers,
            self.prepare,
            max_len=max_len,
            device=torch.device("cpu"),
        )


def test_faster_for_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, 0.9, 1e-3)
    assert device.longest_faster(100_000) == 100_000
    assert device.asked == [512, 12_500, 50_000, 100_000], "a part of the lengths, by bisection"


def test_faster_for_short_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 16,000 tokens, which are found to the next half."""
    device = Device(monkeypatch, 0.2, 1.05e-3)
    assert device.longest_faster(100_000) == 12_500
    assert device.asked == [512, 12_500, 50_000, 25_000]


def test_faster_for_no_longer_than_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, 0.2, 2.4e-3)
    assert device.longest_faster(100_000) == 512


@pytest.mark.parametrize(("base_s", "is_faster"), [(0.97, True), (0.99, False), (1.5, False)])
def test_a_gain_that_might_be_noise_is_none(
    monkeypatch: pytest.MonkeyPatch, base_s: float, is_faster: bool
) -> None:
    device = Device(monkeypatch, base_s, base_s * 1e-3)
    assert device.longest_faster(2048) == (2048 if is_faster else 0)


@pytest.mark.parametrize("max_len", [1, 100, 512])
def test_a_short_model_is_measured_at_its_end(
    monkeypatch: pytest.MonkeyPatch, max_len: int
) -> None:
    device = Device(monkeypatch, 0.5, 0)
    assert device.longest_faster(max_len) == max_len
    assert set(device.asked) == {max_len}


def test_an_interruption_is_outvoted(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, 0.5, 1e-3)
    calls = 0
    run = device.fused

    def disturbed() -> None:
        nonlocal calls
        calls += 1
        run()
        device.now_s += 60 if calls % 11 == 0 else 0

    monkeypatch.setattr(device, "fused", disturbed)
    assert device.longest_faster(1000) == 1000


def test_what_is_faster_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_faster("decode steps", {"1": 2048, "2": 1024, "4": 0})
        log_faster("steps that check drafts", {"1 × 4": 0})
    assert caplog.messages == [
        "one kernel computes all layers of decode steps of 1 (up to 2048 tokens), "
        "2 (up to 1024 tokens)",
        "layer by layer, steps that check drafts of all sizes are as fast as by one kernel",
    ]
