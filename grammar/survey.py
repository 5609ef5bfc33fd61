"""``python -m grammar.survey FOLDER…``: measures coverage, soundness and speed on real schemas.

Each folder holds JSON files, which are MaskBench's (``{"schema": …, "tests": [{"valid": …, "data":
…}]}``), the JSON-Schema-Test-Suite's (a list of such, with ``description``) or plain schemas. The
report has a row for each source: a folder, or the name of a file up to ``---``. Schemas are
compiled as ``strict`` in this process, and times are of its processor. Valid documents may be
rejected for their spelling alone: the order of members, ``1.0`` for ``1``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grammar.bench import synthetic_vocabulary
from grammar.compiler import GrammarCompiler
from grammar.errors import GrammarError, MatcherFailed, UnsupportedKeyword
from grammar.matcher import Matcher
from grammar.spec import GrammarSpec


class Case(NamedTuple):
    source: str
    name: str
    schema: Any
    documents: list[tuple[Any, bool]]
    """Each with whether it is valid."""


@dataclass
class Source:
    """What was counted and measured of the schemas of one source."""

    counts: Counter[str] = field(default_factory=Counter)
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)

    def row(self, name: str) -> str:
        n, taken = self.counts["schemas"], self.counts["taken"]
        share = 100 * taken / max(n, 1)
        wrong = (self.counts[key] for key in ("invalid", "accepted", "valid", "rejected"))
        counts = "{:>7} {:>5} {:>7} {:>5}".format(*wrong)
        times = " ".join(map("{:>8.2f}".format, _quantiles(self.compile_ms, 0.5, 0.99, 1)))
        masks = " ".join(map("{:>7.0f}".format, _quantiles(self.mask_us, 0.5, 0.99)))
        return f"{name[:24]:24} {n:>7} {share:>6.1f} {counts} {times} {masks}"


def cases(folder: Path) -> Iterator[Case]:
    for file in sorted(folder.rglob("*.json")):
        content = json.loads(file.read_text())
        parent = str(file.parent.relative_to(folder.parent))
        source = file.name.partition("---")[0] if "---" in file.name else parent
        groups = content if isinstance(content, list) else [content]
        for group in groups:
            is_case = isinstance(group, dict) and "schema" in group and "tests" in group
            tests = group["tests"] if is_case else ()
            documents = [(test["data"], test["valid"]) for test in tests]
            yield Case(source, file.name, group["schema"] if is_case else group, documents)


def survey(case: Case, compiler: GrammarCompiler, found: Source, walks: int) -> str | None:
    """Count and measure one schema; returns why it is refused."""
    found.counts["schemas"] += 1
    started = time.process_time()
    try:
        compiled = compiler.compile(GrammarSpec.from_schema(case.schema))
    except GrammarError as error:
        return error.keyword if isinstance(error, UnsupportedKeyword) else str(error)[:60]
    finally:
        found.compile_ms.append((time.process_time() - started) * 1e3)
    found.counts["taken"] += 1
    for document, is_valid in case.documents:
        text = json.dumps(document, ensure_ascii=False)
        follows = _follows(compiled.matcher(), compiler, text)
        found.counts["valid" if is_valid else "invalid"] += 1
        found.counts["accepted"] += follows and not is_valid
        found.counts["rejected"] += is_valid and not follows
    rng = random.Random(case.name)
    for _ in range(walks):
        found.mask_us += _masks(compiled.matcher(), compiler, rng)
    return None


def _follows(matcher: Matcher, compiler: GrammarCompiler, text: str) -> bool:
    end = min(compiler.vocabulary.eos_token_ids)
    tokens = [*compiler.vocabulary.tokenize(text.encode()), end]
    return all(map(matcher.accept, tokens))


def _masks(matcher: Matcher, compiler: GrammarCompiler, rng: random.Random) -> list[float]:
    """Microseconds for each mask on the way through a random document."""
    row = np.zeros(compiler.vocabulary.mask_words, dtype=np.int32)
    times: list[float] = []
    while len(times) < 100 and not matcher.is_terminated:
        started = time.thread_time()
        try:
            matcher.fill_mask(row)
        except MatcherFailed:
            break
        times.append((time.thread_time() - started) * 1e6)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if not matcher.accept(int(rng.choice(allowed))):
            break
    return times


def _quantiles(values: list[float], *at: float) -> list[float]:
    ordered = sorted(values) or [0.0]
    return [ordered[int(q * (len(ordered) - 1))] for q in at]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m grammar.survey", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take each n-th schema only")
    parser.add_argument("--walks", type=int, default=1, help="random documents for each schema")
    parser.add_argument("--vocab-size", type=int, default=128_256)
    arguments = parser.parse_args()
    vocabulary = synthetic_vocabulary(arguments.vocab_size)
    compiler = GrammarCompiler(vocabulary, backends=["llguidance"], num_workers=0)
    compiler.start().result()
    sources: defaultdict[str, Source] = defaultdict(Source)
    reasons: Counter[str] = Counter()
    found = (case for folder in arguments.folders for case in cases(folder))
    for number, case in enumerate(found):
        if number % arguments.every == 0:
            reason = survey(case, compiler, sources[case.source], arguments.walks)
            reasons.update([reason] if reason else [])
    heads = "schemas   in %  invalid accepted valid rejected  compile ms: p50, p99, max"
    print(f"{'source':24} {heads}  mask us: p50, p99")
    total = Source()
    for name, source in sorted(sources.items()):
        print(source.row(name))
        total.counts += source.counts
        total.compile_ms += source.compile_ms
        total.mask_us += source.mask_us
    print(total.row("all"))
    print(f"mean compile {statistics.fmean(total.compile_ms):.2f} ms; refused by:")
    for reason, count in reasons.most_common(25):
        print(f"{count:7} {reason}")


if __name__ == "__main__":
    main()
