"""The checks and figures of several GPUs, as far as they need none."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.bench import rank_checks, ranks, throughput
from engine.bench.ranks import Job, Part
from engine.outputs import CompletionOutput, GenerationOutput, Logprob


def answer(places: list[dict[int, float]], *, prompt: float = -1.0) -> GenerationOutput:
    """The first token of each place is the one that was generated."""
    known = [{t: Logprob(value, 1, None) for t, value in place.items()} for place in places]
    return GenerationOutput(
        "a",
        None,
        [4, 5],
        [CompletionOutput(0, "", [next(iter(place)) for place in places], logprobs=known)],
        prompt_logprobs=[None, {5: Logprob(prompt, 1, None)}],
    )


WANTED = answer([{1: -0.5, 2: -0.6}, {3: -0.1}])


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (WANTED, "1 of 1 equal"),
        (answer([{2: -0.5, 1: -0.6}, {9: -0.1}]), "0 of 1 equal, .*part at a near-tie of 1e-01"),
        (answer([{7: -0.5}, {3: -0.1}]), "WRONG: 0 of 1 equal"),
        (answer([{1: -0.5}, {3: -0.1}], prompt=-2.0), "WRONG: 1 of 1 equal"),
    ],
)
def test_what_agrees(got: GenerationOutput, words: str) -> None:
    assert re.match(words, rank_checks.compare([WANTED], [got], (0.3, 0.2)))


def part(limit_s: float, **programs: str) -> Part:
    jobs = [Job(name, [sys.executable, "-c", text]) for name, text in programs.items()]
    return Part("a part", limit_s, lambda _: jobs, lambda _, output: output.splitlines())


def test_a_part_fails_alone_and_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert ranks.run(part(20, one="print(1)", two="print(2)"), 20)
    begun = time.monotonic()
    programs = {"slow": "print(3, flush=True); import time; time.sleep(60)", "bad": "1 / 0"}
    assert not ranks.run(part(2, **programs), 2)
    assert time.monotonic() - begun < 30
    said = capsys.readouterr().out
    assert "  1\n  2\n" in said
    assert "  3\n  FAILED slow: it took too long" in said
    assert "ZeroDivisionError" in said


def test_speeds_are_read(tmp_path: Path) -> None:
    (job,) = ranks._speed("Llama-3-70B", ("b64",), "--tensor-parallel-size", "2")(tmp_path)
    options = throughput._parse(job.command[3:])
    (case,), shape = throughput._cases(options)
    assert shape is not None
    assert (case.n, shape["hidden_size"], options.tensor_parallel_size) == (64, 8192, 2)
    line = {"engine": "sluice", "case": "b64", "s": 1, "out_tok_s": 1234.5, "total_tok_s": 3}
    line |= {"out_tok_s_each": 617.2, "collectives": 0.123}
    assert ranks._tok_s("70B", json.dumps(line)) == [
        "70B, b64: 1,234 tok/s, 617 per GPU, 12.3% of decoding in collectives"
    ]


def test_no_such_part(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ranks.main(["9b"])
    assert "no such part: 9b; there are build, agree, lose" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("name", rank_checks.MODELS)
def test_ranks_agree(name: str) -> None:
    assert rank_checks.agree(name)


@pytest.mark.nightly
@pytest.mark.parametrize("phase", ["loading", "stopped while decoding"])
def test_nothing_is_left_of_ranks(phase: str) -> None:
    assert rank_checks.lose(phase)


@pytest.mark.nightly
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)])
def test_the_share_of_collectives(sizes: tuple[int, int], capsys: Any) -> None:
    options = ["--no-transformers", "--concurrencies", "2", "--num-threads", "1", "--repeats", "1"]
    sized = ["--tensor-parallel-size", str(sizes[0]), "--pipeline-parallel-size", str(sizes[1])]
    memory = ["--kv-cache-memory-bytes", "20000000", "--output-len", "20"]
    assert throughput.main([*options, *sized, *memory]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["collectives"] < 1
    assert found["out_tok_s_each"] == pytest.approx(found["out_tok_s"] / 2, abs=0.1)
