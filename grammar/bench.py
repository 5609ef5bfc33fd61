"""``python -m grammar.bench``: measures how long compiling and masks take.

Compiles typical schemas, and generates random documents under their masks, over a synthetic
vocabulary of the size of a large model's. Compile times are the time that a caller waits, and the
processor time in it, which does not depend on other load: in this process, and through the worker
pool (``pool``: with the worker's). Mask times are for one row, the first documents included.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grammar.audit import BACKENDS
from grammar.compiler import CompiledGrammar, GrammarCompiler
from grammar.errors import GrammarError
from grammar.matcher import MaskFiller, MaskJob, Matcher
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary

_MAX_TOKENS = 300


def synthetic_vocabulary(size: int = 128_256) -> Vocabulary:
    """A byte-level vocabulary shaped like a trained one: bytes, runs of blanks and punctuation,
    numbers, words with and without a leading space, ideographs whole and in part. The last 256 ids
    are special, the first of them EOS."""
    num_text = size - 256
    tokens = list(dict.fromkeys(itertools.islice(_texts(), 2 * num_text)))[:num_text]
    assert len(tokens) == num_text, "the generator ran dry"
    specials = [f"<|special_{i}|>".encode() for i in range(256)]
    return Vocabulary(tokens + specials, [num_text], range(num_text, size), size)


def _texts() -> Iterator[bytes]:
    yield from (bytes([i]) for i in range(256))
    for run in range(2, 65):
        yield from (b" " * run, b"\n" + b" " * run, b"\t" * run)
    marks = "{}[]\",:.;()<>/\\=-_*#'"
    for length in (2, 3):
        yield from ("".join(marks_).encode() for marks_ in itertools.product(marks, repeat=length))
    yield from (f"{n:0{digits}d}".encode() for digits in (2, 3) for n in range(10**digits))
    yield from (b" " + mark.encode() for mark in marks)
    for code in itertools.chain(range(0xC0, 0x250), range(0x391, 0x460), range(0x4E00, 0x6E00)):
        text = chr(code).encode()
        yield text
        yield text[:2]
    yield from _words(random.Random(0))


_ONSETS = (
    *("b", "bl", "br", "c", "ch", "cl", "cr", "d", "dr", "f", "fl", "fr", "g", "gl", "gr", "h"),
    *("j", "k", "l", "m", "n", "p", "pl", "pr", "qu", "r", "s", "sh", "sl", "sp", "st", "str"),
    *("t", "th", "tr", "v", "w", "wh", "y", "z", ""),
)
_RIMES = (
    *("a", "ai", "an", "ar", "e", "ea", "ed", "ell", "en", "er", "es", "i", "ic", "in", "ing"),
    *("ion", "ist", "it", "o", "on", "oo", "or", "ou", "u", "um", "un", "y"),
)


def _words(rng: random.Random) -> Iterator[bytes]:
    while True:
        syllables = rng.choice([1, 2, 2, 3, 3, 4])
        word = "".join(rng.choice(_ONSETS) + rng.choice(_RIMES) for _ in range(syllables))
        for form in (word, f" {word}", f" {word.title()}", word.title()):
            yield form.encode()
        if rng.random() < 0.1:
            yield word.upper().encode()


def _string(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


def _closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "flat, 5 fields": _closed(
        name=_string(),
        age={"type": "integer"},
        email=_string(),
        ok={"type": "boolean"},
        score={"type": "number"},
    ),
    "nested": _closed(
        user=_closed(name=_string(maxLength=40), tags={"type": "array", "items": _string()}),
        at=_string(format="date-time"),
        kind={"enum": ["a", "b", "c"]},
        total={"type": "number", "minimum": 0},
    ),
    "recursive": {
        "$defs": {
            "node": _closed(
                value={"type": "integer"},
                next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            )
        },
        "$ref": "#/$defs/node",
    },
    "tagged union": {
        "oneOf": [
            _closed(kind={"const": f"k{i}"}, **{f"f{i}": _string(pattern="^[a-z]{1,20}$")})
            for i in range(8)
        ]
    },
    "enum of 500": _closed(name={"enum": [f"value_{i}_{i * 7919 % 1000}" for i in range(500)]}),
    "100 optional": {
        "type": "object",
        "properties": {f"field_{i}": _string() for i in range(100)},
        "additionalProperties": False,
    },
    "maxLength 1000": _closed(text=_string(maxLength=1000)),
    "any object": {"type": "object"},
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m grammar.bench", description=__doc__)
    parser.add_argument("--vocab-size", type=int, default=128_256)
    parser.add_argument("--rows", type=int, default=64, help="constrained rows in a batch")
    parser.add_argument("--threads", default="1,2", help="threads that fill a batch")
    parser.add_argument("--walks", type=int, default=10, help="documents per schema")
    parser.add_argument("--backends", default="llguidance", help=f"of {','.join(BACKENDS)}")
    arguments = parser.parse_args()
    vocabulary = synthetic_vocabulary(arguments.vocab_size)
    for backend in arguments.backends.split(","):
        _bench(backend, vocabulary, arguments)


def _bench(backend: str, vocabulary: Vocabulary, arguments: argparse.Namespace) -> None:
    here = GrammarCompiler(vocabulary, backends=[backend], num_workers=0)
    pool = GrammarCompiler(vocabulary, backends=[backend], timeout_s=60.0)
    started = time.perf_counter()
    here.start().result()
    print(f"\n{backend}, {vocabulary.size} tokens; tokenizer {_ms(started):.0f} ms", end="")
    started = time.perf_counter()
    pool.start().result()
    print(f", worker {_ms(started):.0f} ms")
    columns = f"{'in process':>10} {'cpu':>7} {'pool':>7} {'cpu':>7} | {'mask us: first':>14}"
    print(f"{'':16} {columns} {'p50':>6} {'p99':>7} {'max':>7}")
    for name, schema in SCHEMAS.items():
        try:
            _bench_schema(name, schema, here, pool, arguments.walks)
        except GrammarError as error:
            print(f"{name:16} {error}")
    _bench_batch(here, arguments)
    pool.close()
    here.close()


def _bench_schema(
    name: str, schema: dict[str, Any], here: GrammarCompiler, pool: GrammarCompiler, walks: int
) -> None:
    local, pooled = [], []
    for i in range(9):
        spec = GrammarSpec.from_schema(schema | {"$comment": f"{name} {i}"})  # not the cached one
        with _Timing(here) as timing:
            compiled = here.compile(spec)
        local.append(timing)
        with _Timing(pool) as timing:
            pool.compile(spec)
        pooled.append(timing)
    rng = random.Random(1)
    times = [_walk(compiled.matcher(), here.vocabulary, rng) for _ in range(walks)]
    flat = np.array([us for walk in times for us in walk])
    p50, p99 = np.percentile(flat, [50, 99])
    first = statistics.median(walk[0] for walk in times)
    compiling = " ".join(
        f"{statistics.median(ms):{width}.1f} ms"
        for timings in (local, pooled)
        for ms, width in (([t.ms for t in timings], 7), ([t.cpu_ms for t in timings], 4))
    )
    print(f"{name:16} {compiling} | {first:14.0f} {p50:6.0f} {p99:7.0f} {flat.max():7.0f}")


class _Timing:
    """Measures a block: its wall time, and the processor time of this process and of a compiler's
    workers."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler

    def __enter__(self) -> _Timing:
        self._cpu_s, self._started = self._processor_time_s(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.ms = _ms(self._started)
        self.cpu_ms = (self._processor_time_s() - self._cpu_s) * 1e3

    def _processor_time_s(self) -> float:
        # In nanoseconds; the usual clocks of other processes count in ticks.
        workers = (
            int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
            for pid in self._compiler.worker_pids
        )
        return time.process_time() + sum(workers) / 1e9


def _walk(matcher: Matcher, vocabulary: Vocabulary, rng: random.Random) -> list[float]:
    """Microseconds per mask on the way through a random document."""
    row = np.zeros(vocabulary.mask_words, dtype=np.int32)
    times = []
    blanks = {i for i, token in enumerate(vocabulary.tokens) if token.isspace()}
    for _ in range(_MAX_TOKENS):
        started = time.perf_counter()
        matcher.fill_mask(row)
        times.append((time.perf_counter() - started) * 1e6)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        choices = [int(i) for i in rng.choices(allowed, k=8)]
        assert matcher.accept(next((i for i in choices if i not in blanks), choices[0]))
        if matcher.is_terminated:
            break
    return times


def _bench_batch(compiler: GrammarCompiler, arguments: argparse.Namespace) -> None:
    """A batch of rows, each in the middle of its own document."""
    rng = random.Random(2)
    compiled = [
        grammar for schema in SCHEMAS.values() if (grammar := _try(compiler, schema)) is not None
    ]
    matchers = [rng.choice(compiled).matcher() for _ in range(arguments.rows)]
    rows = np.zeros((arguments.rows, compiler.vocabulary.mask_words), dtype=np.int32)
    jobs = [MaskJob(matcher, (), i) for i, matcher in enumerate(matchers)]
    for num_threads in map(int, arguments.threads.split(",")):
        filler = MaskFiller(num_threads)
        times = []
        for _ in range(40):
            started = time.perf_counter()
            filler.fill(jobs, rows)
            times.append(_ms(started))
            for matcher, row in zip(matchers, rows, strict=True):
                _step(matcher, row, rng)
        p10, p50, p99 = np.percentile(times, [10, 50, 99])
        print(
            f"{arguments.rows} rows at once, {num_threads} threads: "
            f"p10 {p10:.2f} ms, p50 {p50:.2f} ms, p99 {p99:.2f} ms"
        )


def _step(matcher: Matcher, row: Any, rng: random.Random) -> None:
    allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    if len(allowed) == 0:
        matcher.rollback(matcher.num_tokens)
    else:
        matcher.accept(int(rng.choice(allowed)))


def _try(compiler: GrammarCompiler, schema: dict[str, Any]) -> CompiledGrammar | None:
    try:
        return compiler.compile(GrammarSpec.from_schema(schema))
    except GrammarError:
        return None


def _ms(started: float) -> float:
    return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    main()
