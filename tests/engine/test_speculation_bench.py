from __future__ import annotations

import json

import pytest

from engine import speculation_bench


def test_prompt_lookup_pays_on_copies(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "copy --device cpu --num-threads 1 --drafts 7 --prompts 6"
    speculation_bench.main(arguments.split())
    plain, ngram = map(json.loads, capsys.readouterr().out.splitlines())
    assert plain["speed_up"] == 1.0
    # Twice and more on a quiet machine.
    assert ngram["speed_up"] > 1.3
