from __future__ import annotations

import json
from typing import Any

import pytest

from engine.architectures import NATIVE
from engine.bench import families
from engine.bench.families import Row
from engine.bench.shapes import QUANTIZATIONS, SHAPES
from engine.models import config
from engine.models.registry import read_config
from engine.quant.config import read_quantization
from tests.engine.models.families import CASES

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "float32",
}
ON_CPU = ["--device", "cpu", "--repeats", "1", "--num-threads", "1"]


def test_every_family_has_a_shape() -> None:
    measured = {NATIVE[shape["architectures"][0]].name for shape in SHAPES.values()}
    families = {family.name for family in NATIVE.values()}
    # V3 has the code of V2, and too many weights for one GPU; Ministral 3 has that of Mistral.
    alike = {"DeepSeek V3, R1", "Ministral 3, Mistral Small 3"}
    # Their text models are Qwen 2.5 and 3; ``engine.bench.pictures`` measures what they see.
    alike |= {"Qwen2.5-VL", "Qwen3-VL"}
    # Those with recurrent states have no kernels of their own on a GPU yet.
    with_states = {case.family for case in CASES if case.has_states}
    assert families - measured == alike | with_states


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_configs_that_can_be_read(shape: str, tmp_path: Any) -> None:
    for quantization in QUANTIZATIONS:
        written = families.case_file(SHAPES[shape], quantization, []).model
        (tmp_path / "config.json").write_text(json.dumps(written))
        assert read_config(tmp_path).num_layers == SHAPES[shape]["num_hidden_layers"]
        quantized = read_quantization(tmp_path, "fp8" if quantization == "fp8" else None)
        assert (quantized is None) == (quantization == "none")
    assert config.read_architecture(tmp_path) == SHAPES[shape]["architectures"][0]


@pytest.mark.nightly
def test_one_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    monkeypatch.setitem(SHAPES, "broken", {**TINY, "num_key_value_heads": 3})
    arguments = ["--shapes", "tiny", "broken", "--batches", "1", "3"]
    arguments += ["--quantizations", "fp8-blocks", "--input-len", "4", "--output-len", "4"]
    arguments += ["--quantize-lm-head"]  # an option of engine.bench
    assert families.main([*arguments, *ON_CPU]) == 1
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [(line["shape"], line["quantization"], line.get("batch")) for line in lines] == [
        ("tiny", "fp8-blocks", 1),
        ("tiny", "fp8-blocks", 3),
        ("broken", "fp8-blocks", None),
    ]
    assert "num_key_value_heads" in lines[-1]["error"]
    assert "fp8-blocks" in captured.err


def test_the_table_compares_with_plain_weights() -> None:
    rows = [Row("a", "none", 1, 100.0), Row("a", "fp8", 1, 150.0), Row("b", "fp8", 64, 10.0)]
    view = families.table(rows)
    cells = [[str(cell) for cell in column.cells] for column in view.columns]
    assert cells[2] == ["100", "150 (1.50×)", "fails"]
    assert cells[3] == ["fails", "fails", "10"]


@pytest.mark.nightly
def test_the_limit_stands_beside_what_is_not_quantized(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    arguments = ["--shapes", "tiny", "--batches", "1", "--input-len", "4", "--output-len", "4"]
    arguments += ["--bandwidth", "0.001"]
    assert families.main([*arguments, *ON_CPU]) == 0
    captured = capsys.readouterr()
    line = json.loads(captured.out)
    weights = 300 * 128 + 2 * (128 * 256 + 128 * 128 + 3 * 128 * 256)
    assert line["limit_tok_s"] == pytest.approx(1e9 / (4 * weights), rel=1e-3)
    assert f"({line['out_tok_s'] / line['limit_tok_s']:.0%})" in captured.err
