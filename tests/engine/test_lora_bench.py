from __future__ import annotations

import msgspec
import pytest

from engine import lora_bench
from engine.lora_bench import WITHOUT, Measurement


@pytest.mark.parametrize("options", [["--adapters", "1"], ["--adapters", "2", "--rank", "8"]])
def test_every_case_is_measured_beside_an_engine_without_adapters(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ["--input-len", "5", "--output-len", "4", "--repeats", "1"]
    lora_bench.main([*options, *lengths, "--requests", "1", "3"])
    lines = capsys.readouterr().out.splitlines()
    found = [msgspec.json.decode(line, type=Measurement) for line in lines]
    alone = [WITHOUT, "no request has an adapter", "one adapter"]
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
        cost = plain[row.requests].out_tok_s / row.out_tok_s - 1
        assert row.cost == pytest.approx(cost, abs=0.01, rel=0.01)
