from __future__ import annotations

import json

import pytest

from engine import speculation_bench


def test_prompt_lookup_pays_on_copies(capsys: pytest.CaptureFixture[str]) -> None:
    def speed_up() -> float:
        arguments = "copy --device cpu --num-threads 1 --drafts 7 --prompts 6"
        speculation_bench.main(arguments.split())
        plain, ngram = map(json.loads, capsys.readouterr().out.splitlines())
        assert plain["speed_up"] == 1.0
        return float(ngram["speed_up"])

    # Twice and more on a quiet machine; up to five attempts on one that is not.
    assert any(speed_up() > 1.3 for _ in range(5))
