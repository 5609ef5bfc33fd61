"""``python -m engine.bench.ranks``: what several GPUs of one host must do, and how fast they are.

First whether several ranks give the tokens of one, and whether a rank that is lost takes the engine
along; then the figures of PERFORMANCE.md, with random weights. Each part has processes and a time
limit of its own, and fails alone; parts for which no time is left are named at the end. Needs no
network.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from engine.bench.rank_checks import MODELS, PHASES
from engine.bench.shapes import SHAPES
from engine.bench.throughput import Case, CaseFile, Measurement

_LEAST_S = 25.0
"""A part is not begun with less time."""
_CASES = {
    case.name: case
    for case in (
        Case("b1", 1, (128, 128), (256, 256)),
        Case("b64", 64, (512, 512), (256, 256)),
        Case("b256", 256, (512, 512), (256, 256)),
        Case("prompts", 64, (512, 512), (1, 1)),
        Case("decode", 256, (16, 16), (128, 128)),
        Case("1000/1000", 320, (1000, 1000), (1000, 1000)),
    )
}


_LARGE = {
    **SHAPES["Llama-3-8B"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
_SHAPES = {**SHAPES, "Llama-3-70B": _LARGE}


class Job(NamedTuple):
    """A process."""

    name: str
    command: Sequence[str]


class Outcome(NamedTuple):
    job: Job
    output: str
    problem: str | None
    """None if it did what it should."""


class Part(NamedTuple):
    name: str
    limit_s: float
    jobs: Callable[[Path], Sequence[Job]]
    """Which run at the same time. They get a folder."""
    read: Callable[[str, str], list[str]]
    """From the name and the output of a job to what is printed."""


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def _checks(check: str, names: Sequence[str]) -> Callable[[Path], list[Job]]:
    return lambda _: [Job(name, _module("engine.bench.rank_checks", check, name)) for name in names]


def _lines(_name: str, output: str) -> list[str]:
    """Those that a check prints; a process logs to stderr."""
    return output.splitlines()


def _all_reduce(_name: str, output: str) -> list[str]:
    by_way: dict[str, list[str]] = {}
    for line in output.splitlines():
        found = json.loads(line)
        if "us" in found:
            size = f"{found['bytes'] // 1024} KB {found['us']}"
            by_way.setdefault(found["by"], []).append(size)
        else:
            by_way["checked"] = [line]
    return [f"{way}, us: {' | '.join(sizes)}" for way, sizes in by_way.items()]


def _speed(shape: str, cases: Sequence[str], *options: str) -> Callable[[Path], list[Job]]:
    def jobs(folder: Path) -> list[Job]:
        name = " ".join((shape, *(option.removeprefix("--") for option in options)))
        chosen = [_CASES[case] for case in cases]
        file = folder / f"{abs(hash((shape, *cases)))}.json"
        file.write_bytes(msgspec.json.encode(CaseFile(_SHAPES[shape], chosen)))
        most = max(case.n for case in chosen)
        sizes = ("--max-num-seqs", str(most), "--max-model-len", "2304", "--repeats", "1")
        return [Job(name, _module("engine.bench", "--cases", str(file), *sizes, *options))]

    return jobs


def _tok_s(name: str, output: str) -> list[str]:
    found = []
    for line in output.splitlines():
        one = msgspec.json.decode(line, type=Measurement)
        words = f"{name}, {one.case}: {one.out_tok_s:,.0f} tok/s"
        if one.out_tok_s_each is not None:
            words += f", {one.out_tok_s_each:,.0f} per GPU"
        if one.collectives is not None:
            words += f", {one.collectives:.1%} of decoding in collectives"
        found.append(words)
    return found


_TP = ("--tensor-parallel-size", "2")
_PP = ("--pipeline-parallel-size", "2")
_EP = (*_TP, "--enable-expert-parallel")
_FP8 = ("--quantization", "fp8")
_FP8_CACHE = ("--kv-cache-dtype", "fp8")
_ALL = ("b1", "b64", "b256")
_APART = ("prompts", "decode")
"""Where stages lose time."""
_BUILD = Job("build", _module("kernels", "build"))
_ALL_REDUCE = Job("all-reduce", _module("kernels.bench", "all-reduce"))
PARTS = (
    Part("build", 150, lambda _: [_BUILD] if torch.cuda.is_available() else [], lambda *_: []),
    Part("agree", 150, _checks("agree", list(MODELS)), _lines),
    Part("lose", 90, _checks("lose", PHASES), _lines),
    Part("all-reduce", 60, lambda _: [_ALL_REDUCE], _all_reduce),
    Part("8b", 120, _speed("Llama-3-8B", _ALL), _tok_s),
    Part("8b-tp2", 120, _speed("Llama-3-8B", _ALL, *_TP), _tok_s),
    Part("70b-tp2", 180, _speed("Llama-3-70B", (*_ALL, *_APART), *_TP), _tok_s),
    Part("70b-pp2", 180, _speed("Llama-3-70B", ("b256", *_APART), *_PP), _tok_s),
    Part("30b-tp2", 120, _speed("Qwen3-30B-A3B", _ALL, *_TP, *_FP8), _tok_s),
    Part("30b-ep2", 120, _speed("Qwen3-30B-A3B", _ALL, *_EP, *_FP8), _tok_s),
    Part("70b-fp8", 260, _speed("Llama-3-70B", ("1000/1000",), *_TP, *_FP8, *_FP8_CACHE), _tok_s),
)


def run(part: Part, limit_s: float) -> bool:
    """Whether all of it did what it should; prints what it found, or why not."""
    begun, before = time.monotonic(), _memory_in_use()
    with tempfile.TemporaryDirectory(prefix="sluice-ranks-") as folder:
        outcomes = _run_all(part.jobs(Path(folder)), begun + limit_s, Path(folder))
    for outcome in outcomes:
        for line in _read(part, outcome):
            print(f"  {line}", flush=True)
        if outcome.problem is not None:
            print(f"  FAILED {outcome.job.name}: {outcome.problem}", flush=True)
    left = _memory_in_use() - before
    if left > 64:
        print(f"  WRONG: {left} MiB of GPU memory are left in use", flush=True)
    print(f"  ({part.name} took {time.monotonic() - begun:.0f} s)", flush=True)
    return left <= 64 and all(outcome.problem is None for outcome in outcomes)


def _read(part: Part, outcome: Outcome) -> list[str]:
    try:
        return part.read(outcome.job.name, outcome.output)
    except (ValueError, KeyError, msgspec.MsgspecError):  # cut off
        return outcome.output.splitlines()[-3:]


def _run_all(jobs: Sequence[Job], until: float, folder: Path) -> list[Outcome]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    started = []
    for number, job in enumerate(jobs):
        with (
            (folder / f"{number}.out").open("w") as out,
            (folder / f"{number}.err").open("w") as err,
        ):
            process = subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
            )
        started.append((number, job, process))
    outcomes = []
    for number, job, process in started:
        problem = None
        try:
            code = process.wait(max(0.0, until - time.monotonic()))
            problem = None if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            problem = "it took too long"
        finally:
            _end(process)
        output, errors = ((folder / f"{number}.{end}").read_text() for end in ("out", "err"))
        if problem is not None:
            problem = "\n    ".join((problem, *errors.strip().splitlines()[-4:]))
        outcomes.append(Outcome(job, output, problem))
    return outcomes


def _end(process: subprocess.Popen[Any]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _memory_in_use() -> int:
    """MiB of all GPUs; 0 without any."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(int(line) for line in found.split())


def main(arguments: Sequence[str] | None = None) -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m engine.bench.ranks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(names)}")
    parser.add_argument("--minutes", type=float, default=7.8, help="for all parts")
    options = parser.parse_args(arguments)
    if unknown := {*options.parts} - {*names}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [part for part in PARTS if not options.parts or part.name in options.parts]
    end, failed, left = time.monotonic() + 60 * options.minutes, [], []
    for part in chosen:
        limit_s = min(part.limit_s, end - time.monotonic())
        if limit_s < _LEAST_S:
            left.append(part.name)
            continue
        print(f"{part.name}:", flush=True)
        if not run(part, limit_s):
            failed.append(part.name)
    if left:
        print(f"not run, as no time was left: {' '.join(left)}")
    print(f"failed: {' '.join(failed) or 'nothing'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
