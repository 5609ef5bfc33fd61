from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.bench import lora, shapes
from engine.bench.lora import NOBODY, WITHOUT, Measurement
from engine.layers.linear import Linear, QuantizedWeight
from engine.llm import LLM


@pytest.mark.parametrize("options", [["--adapters", "1"], ["--adapters", "2", "--rank", "8"]])
def test_every_case_is_measured_beside_an_engine_without_adapters(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ["--input-len", "5", "--output-len", "4", "--repeats", "1"]
    lora.main([*options, *lengths, "--requests", "1", "3"])
    lines = capsys.readouterr().out.splitlines()
    found = [msgspec.json.decode(line, type=Measurement) for line in lines]
    alone = [WITHOUT, NOBODY, "one adapter"]
    together = [*alone, "one request has an adapter"]
    if "2" in options:
        together.append("2 adapters")
    assert [(row.case, row.requests) for row in found] == [
        *((case, 1) for case in alone),
        *((case, 3) for case in together),
    ]
    plain = {row.requests: row for row in found if row.case == WITHOUT}
    for row in found:
        assert row.out_tok_s > 0
        assert row.first_ms > 0
        cost = plain[row.requests].out_tok_s / row.out_tok_s - 1
        assert row.cost == pytest.approx(cost, abs=0.01, rel=0.01)


def test_one_engine_is_compared_with_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines: list[LLM] = []
    monkeypatch.setattr(LLM, "__init__", noted(engines, LLM.__init__))
    lengths = ["--input-len", "5", "--output-len", "4", "--repeats", "1", "--requests", "1"]
    lora.main(["--one-engine", "--adapters", "1", *lengths])
    lines = capsys.readouterr().out.splitlines()
    found = [msgspec.json.decode(line, type=Measurement) for line in lines]
    assert [row.case for row in found] == [NOBODY, "one adapter"]
    assert found[0].cost == 0
    assert len(engines) == 1


def noted(engines: list[LLM], create: Callable[..., None]) -> Callable[..., None]:
    def init(self: LLM, *given: Any, **options: Any) -> None:
        engines.append(self)
        create(self, *given, **options)

    return init


def test_quantization_is_of_a_shape(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        lora.main(["--quantization", "awq"])
    assert "--quantization needs --shape" in capsys.readouterr().err


@pytest.mark.parametrize("quantization", ["fp8", "awq"])
def test_shapes_may_be_quantized(
    quantization: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(lora.__file__).parents[1] / "demo" / "model"
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2}
    small = {**json.loads((folder / "config.json").read_text()), **sizes}
    monkeypatch.setitem(shapes.SHAPES, "small", small)
    lengths = ["--input-len", "5", "--output-len", "4", "--repeats", "1", "--requests", "1"]
    quantized: list[Linear] = []
    quantize = Linear.quantize

    def note(self: Linear, weight: Callable[[Linear], QuantizedWeight]) -> None:
        quantized.append(self)
        quantize(self, weight)

    monkeypatch.setattr(Linear, "quantize", note)
    shape = ["--shape", "small", "--quantization", quantization]
    lora.main([*shape, "--adapters", "1", *lengths])
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert len(quantized) >= 2 * 2 * 4, "of two engines two layers with four products each"
