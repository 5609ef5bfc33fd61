from __future__ import annotations

import json
import os
import random
from pathlib import Path

import msgspec
import pytest

from engine.bench import throughput
from engine.bench.throughput import Case, CaseFile, Workload
from engine.errors import EngineError
from tests.engine import toys


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """``throughput.main`` sets these for its process."""
    for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "1" if "NUM" in name else "PASSIVE"))


ROOT = Path(__file__).parents[3]
CASE = Case("c", n=8, isl=(4, 9), osl=(2, 5), shared_prefix=3)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_llama(tmp_path_factory.mktemp("llama"))


def test_draw() -> None:
    rng = random.Random(0)
    first, second = (throughput.draw(CASE, 4000, rng) for _ in range(2))
    assert first != second
    assert len(first.prompts) == len(first.output_lens) == 8
    assert len({tuple(prompt[:3]) for prompt in first.prompts}) == 1
    assert {len(prompt) - 3 for prompt in first.prompts} <= set(range(4, 10))
    assert set(first.output_lens) <= {2, 3, 4, 5}
    assert all(500 <= token < 3500 for prompt in first.prompts for token in prompt)


def test_engines_get_the_same_prompts_and_the_best_run_counts() -> None:
    seen: dict[str, list[Workload]] = {"a": [], "b": []}

    def engine(name: str) -> throughput.Engine:
        def generate(case: Case, workload: Workload) -> int:
            seen[name].append(workload)
            return sum(workload.output_lens)

        return generate

    engines = [(name, engine(name)) for name in seen]
    results = list(throughput.compare(engines, [CASE], 4000, repeats=3))
    assert seen["a"] == seen["b"]
    assert len(seen["a"]) == 4  # the warm-up too
    assert [(r.engine, r.case) for r in results] == [("a", "c"), ("b", "c")]
    assert all(r.total_tok_s > r.out_tok_s > 0 for r in results)


def test_an_engine_that_generates_less_than_asked_does_not_count() -> None:
    workload = throughput.draw(CASE, 400, random.Random())
    with pytest.raises(EngineError, match="lazy generated 1 tokens in place of"):
        throughput.timed("lazy", lambda case, workload: 1, CASE, workload)


@pytest.mark.nightly
def test_the_engine_beside_transformers(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(model_dir), "--input-len", "8", "--output-len", "6"]
    arguments += ["--repeats", "1", "--only", "1 concurrent", "16 concurrent"]
    assert throughput.main(arguments) == 0
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [(line["engine"], line["case"]) for line in lines] == [
        (engine, f"{n} concurrent")
        for n in (1, 16)
        for engine in ("sluice", "transformers", "transformers-cb")
    ]
    assert all(set(line) == {"engine", "case", "s", "out_tok_s", "total_tok_s"} for line in lines)
    assert "×" in captured.err


def test_a_case_file_with_random_weights(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((model_dir / "config.json").read_text())
    cases = [msgspec.to_builtins(CASE), msgspec.to_builtins(Case("d", 1, (2, 2), (3, 3), 0.8))]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"model": config, "cases": cases}))
    assert throughput.main(["--cases", str(path), "--only", "d"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["case"] == "d"


def test_the_cases_of_the_published_figures_are_at_hand() -> None:
    published = (ROOT / "PERFORMANCE.md").read_text()
    file = msgspec.json.decode((ROOT / "engine/bench/cases.json").read_bytes(), type=CaseFile)
    assert file.model["architectures"] == ["LlamaForCausalLM"]
    longest = max(case.shared_prefix + case.isl[1] + case.osl[1] for case in file.cases)
    assert longest <= file.model["max_position_embeddings"]
    for case in file.cases:
        assert f"| {case.name}" in published


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "no such case: nothing"),
        (["--cases", "/nonexistent.json"], "/nonexistent.json cannot be read"),
        (["--model", "/nonexistent"], "/nonexistent"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert throughput.main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.replace("\n", "")


def test_speculation_beside_plain_decoding(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = [
        '{"method": "ngram", "num_speculative_tokens": 2}',
        '{"method": "ngram", "num_speculative_tokens": 3, "adaptive": false}',
    ]
    arguments = ["--model", str(model_dir), "--input-len", "8", "--output-len", "6"]
    arguments += ["--repeats", "1", "--no-transformers", "--concurrencies", "1", "3"]
    for config in configs:
        arguments += ["--speculative-config", config]
    assert throughput.main(arguments) == 0
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    names = ["ngram, 2", "ngram, fixed 3", "sluice"]
    assert [(line["case"], line["engine"]) for line in lines] == [
        (f"{n} concurrent", name) for n in (1, 3) for name in names
    ]
    speeds = {(line["case"], line["engine"]): line["out_tok_s"] for line in lines}
    lowest = min(
        speeds[f"{n} concurrent", names[0]] / speeds[f"{n} concurrent", "sluice"] for n in (1, 3)
    )
    (last,) = [line for line in captured.err.splitlines() if "slowest" in line]
    assert f"{lowest:.2f}×" in last


def test_a_speculative_config_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--no-transformers", "--speculative-config", '{"method": "magic"}']
    assert throughput.main(arguments) == 1
    assert "--speculative-config" in capsys.readouterr().err
