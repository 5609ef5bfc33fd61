"""``python -m engine.bench.families``: measures the tokens per second of one shape of each family.

Every shape runs in a process of its own, with random weights, through ``engine.bench``. Prints one
JSON line for each measurement to stdout, and a table to stderr. ``--bandwidth`` shows beside each
speed its share of the speed at which weights can be read. ``--quantizations`` measures each shape
several times:

    python -m engine.bench.families --shapes Llama-3-8B --quantizations none fp8 awq --batches 1 64

``--quantize-lm-head`` quantizes their heads to FP8, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from engine.bench.shapes import QUANTIZATIONS, SHAPES
from engine.bench.throughput import Case, CaseFile, Measurement
from engine.bench.weight_traffic import step_bytes
from engine.models.registry import read_config


class Row(msgspec.Struct, frozen=True):
    """One JSON line."""

    shape: str
    quantization: str
    batch: int
    out_tok_s: float
    limit_tok_s: float | None = None
    """The speed if a step took as long as reading the weights; None without ``--bandwidth``."""


def limit(shape: str, batch: int, bandwidth: float) -> float:
    """Output tokens a second of unquantized weights. bandwidth: TB/s of the device's memory."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPES[shape]))
        return batch * bandwidth * 1e12 / step_bytes(read_config(Path(folder)), batch)


def case_file(shape: dict[str, Any], quantization: str, cases: Sequence[Case]) -> CaseFile:
    stored = QUANTIZATIONS[quantization]
    return CaseFile(shape if stored is None else {**shape, "quantization_config": stored}, [*cases])


def measure(
    shape: str,
    quantization: str,
    cases: Sequence[Case],
    arguments: Sequence[str],
    bandwidth: float | None = None,
) -> Iterator[Row]:
    """Measure a shape in a process of its own. arguments: more of them for ``engine.bench``. Raises
    ``CalledProcessError``."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        path = Path(folder) / "cases.json"
        path.write_bytes(msgspec.json.encode(case_file(SHAPES[shape], quantization, cases)))
        command = [sys.executable, "-m", "engine.bench", "--cases", str(path), *arguments]
        if quantization == "fp8":
            command += ["--quantization", "fp8"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        found = msgspec.json.decode(line, type=Measurement)
        batch, at_most = int(found.case), None
        if bandwidth is not None and quantization == "none":
            at_most = round(limit(shape, batch, bandwidth), 1)
        yield Row(shape, quantization, batch, found.out_tok_s, at_most)


def table(rows: Sequence[Row]) -> Table:
    batches = sorted({row.batch for row in rows})
    view = Table("shape", "quantization", title="Output tokens per second")
    for batch in batches:
        view.add_column(f"batch {batch}", justify="right")
    speeds = {(row.shape, row.quantization, row.batch): row.out_tok_s for row in rows}
    limits = {(row.shape, row.quantization, row.batch): row.limit_tok_s for row in rows}
    for shape, quantization in dict.fromkeys((row.shape, row.quantization) for row in rows):
        cells = []
        for batch in batches:
            speed, plain = (speeds.get((shape, q, batch)) for q in (quantization, "none"))
            ratio, at_most = "", limits.get((shape, quantization, batch))
            if speed and plain and quantization != "none":
                ratio = f" ({speed / plain:.2f}×)"
            elif speed and at_most:
                ratio = f" ({speed / at_most:.0%})"
            cells.append(f"{speed:,.0f}{ratio}" if speed else "fails")
        view.add_row(shape, quantization, *cells)
    return view


def _parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m engine.bench.families",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Other options are those of engine.bench.",
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=[*SHAPES])
    parser.add_argument("--quantizations", nargs="+", choices=QUANTIZATIONS, default=["none"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64], help="requests at once")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--bandwidth", type=float, help="of the GPU's memory, in TB/s")
    return parser.parse_known_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options, more = _parse(arguments)
    console = Console(stderr=True)
    isl, osl = options.input_len, options.output_len
    cases = [Case(str(n), n, (isl, isl), (osl, osl)) for n in options.batches]
    more = ["--max-num-seqs", str(max(options.batches)), "--max-model-len", str(isl + osl), *more]
    rows, failures = [], 0
    for shape in options.shapes:
        for quantization in options.quantizations:
            try:
                for row in measure(shape, quantization, cases, more, options.bandwidth):
                    rows.append(row)
                    print(msgspec.json.encode(row).decode(), flush=True)
            except subprocess.CalledProcessError as error:
                failures += 1
                last = error.stderr.strip().splitlines()[-1:] or [f"exit status {error.returncode}"]
                print(json.dumps({"shape": shape, "quantization": quantization, "error": last[0]}))
    console.print(table(rows))
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
