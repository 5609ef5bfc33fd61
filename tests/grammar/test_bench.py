from __future__ import annotations

import subprocess
import sys

import pytest

from grammar.bench import synthetic_vocabulary


def test_the_vocabulary_looks_like_one() -> None:
    vocabulary = synthetic_vocabulary(20_000)
    assert vocabulary.size == len(vocabulary.tokens) == 20_000
    texts = vocabulary.tokens[:-256]
    assert len(set(texts)) == len(texts)
    assert all(bytes([i]) in set(texts) for i in range(256))
    assert len(vocabulary.eos_token_ids) == 1
    assert vocabulary.tokens == synthetic_vocabulary(20_000).tokens


@pytest.mark.nightly
def test_it_runs_and_prints_every_schema() -> None:
    command = [sys.executable, "-m", "grammar.bench", "--vocab-size", "8000", "--walks", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert sum(" ms | " in line for line in lines) == 8
    assert sum("rows at once" in line for line in lines) == 2
