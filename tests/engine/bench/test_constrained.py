from __future__ import annotations

import msgspec
import pytest

from engine.bench import constrained
from engine.bench.constrained import KINDS, Measurement


def test_every_kind_is_measured_beside_plain_decoding(capsys: pytest.CaptureFixture[str]) -> None:
    constrained.main(["--rows", "1", "3", "--tokens", "6", "--repeats", "1"])
    lines = capsys.readouterr().out.splitlines()
    found = [msgspec.json.decode(line, type=Measurement) for line in lines]
    assert [(row.kind, row.rows) for row in found] == [(k, n) for n in (1, 3) for k in KINDS]
    plain = {row.rows: row for row in found if row.kind == "plain"}
    for row in found:
        assert row.ttft_ms > 0
        assert row.tpot_ms > 0
        assert row.out_tok_s > 0
        assert row.cost == pytest.approx(row.tpot_ms / plain[row.rows].tpot_ms - 1, abs=0.002)
