from __future__ import annotations

import json

import pytest

from engine.bench import speculation_host as bench


def test_a_line_for_each_number_of_requests(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--batches", "1", "8", "--max-seconds", "0"])
    lines = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [line["batch"] for line in lines] == [1, 8]
    for line in lines:
        assert line["plain"] > 0
        for name in ("control", "off", "fixed", "adaptive", "learning"):
            middle, low, high = line[name]
            assert low <= middle <= high
        drafts = line["drafts_a_step"]
        assert drafts["control"] == drafts["off"] == 0.0
        assert drafts["adaptive"] > 0.7 * drafts["fixed"] > 0.0


@pytest.mark.parametrize("batch", ["0", "300"])
def test_a_batch_that_the_engine_does_not_take_is_refused(
    batch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--batches", batch])
    assert "--batches must be in [1, 256]" in capsys.readouterr().err
