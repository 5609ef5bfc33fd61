from __future__ import annotations

from pathlib import Path

from tests.gateway.test_cli import sluice


def test_it_lists_what_runs_and_on_what(tmp_path: Path) -> None:
    done = sluice("models", cwd=tmp_path)
    assert done.returncode == 0
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    methods = "fp8, awq, gptq, compressed-tensors, modelopt"
    assert ["Qwen3ForCausalLM", "Qwen 3", "native", methods] in rows
    assert ["GPT2LMHeadModel", "", "transformers", "fp8"] in rows
    assert len({row[0] for row in rows}) == len(rows)
    assert "Other decoders" not in done.stdout


def test_on_a_terminal_it_says_that_others_may_run(tmp_path: Path) -> None:
    done = sluice("models", cwd=tmp_path, FORCE_COLOR="1", NO_COLOR="1", COLUMNS="120")
    assert "Other decoders run on transformers" in done.stdout
