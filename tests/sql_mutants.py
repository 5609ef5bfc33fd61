"""As ``tests.mutants``, for SQL: which small faults of a function its tests do not notice.

    python -m tests.sql_mutants quota_reserve limit_left --tests tests/tenants/test_reservations.py

Each mutant of a file in ``migrations/sql/functions`` changes one operator, number or statement. It
takes the function's place in the database of the tests, and in the one that others are copies of.
All tests run until the first one fails, quick ones first.
"""

from __future__ import annotations

import argparse
import difflib
import random
import re
from collections.abc import Iterator, Sequence

import asyncpg
import pytest

from migrations.source import functions
from tests import postgres
from tests.mutants import OPTIONS, Bench

_CHANGED = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "=": "<>",
    "<>": "=",
    "+": "-",
    "-": "+",
    "*": "+",
    "AND": "OR",
    "OR": "AND",
    "NOT": "",
    "true": "false",
    "false": "true",
    "least": "greatest",
    "greatest": "least",
    "FOR UPDATE": "",
    "DESC": "",
}
_TOKEN = re.compile(
    r"--[^\n]*|'[^']*'|::\w+|:=|=>|FOR UPDATE|<>|<=|>=|\|\||[<>=*+-]|\b[A-Za-z_]\w*\b|\b\d+\b"
)
_STATEMENT = re.compile(r"^( *)(?:PERFORM|DELETE FROM|UPDATE|\w+(?:\.\w+)? :=)[^;]*;", re.MULTILINE)
_NO_COMPARISON = re.compile(r"\b(?:SET|DO UPDATE SET)\b[^;]*$")


def mutants(sql: str) -> list[str]:
    """A function's text with one change each."""
    begin = sql.index("$$") + 2
    found = dict.fromkeys([*_of_tokens(sql, begin), *_without_statements(sql, begin)])
    return [text for text in found if text != sql]


def _of_tokens(sql: str, begin: int) -> Iterator[str]:
    for token in _TOKEN.finditer(sql, begin):
        text = token[0]
        is_assigned = text == "=" and _NO_COMPARISON.search(
            sql[begin : token.start()].split(";")[-1]
        )
        is_dropped = sql[: token.start()].endswith("PERFORM ")  # whatever it selects
        changed = str(int(text) + 1) if text.isdigit() else _CHANGED.get(text)
        if changed is None or is_assigned or is_dropped:
            continue
        if text == "*" and sql[token.end()] in "),\n":
            continue
        yield sql[: token.start()] + changed + sql[token.end() :]


def _without_statements(sql: str, begin: int) -> Iterator[str]:
    for statement in _STATEMENT.finditer(sql, begin):
        yield sql[: statement.start()] + statement[1] + "NULL;" + sql[statement.end() :]


def main(arguments: Sequence[str] | None = None) -> int:
    """The number of survivors, 100 at most."""
    parser = argparse.ArgumentParser(prog="python -m tests.sql_mutants", description=__doc__)
    parser.add_argument("functions", nargs="+", choices=[*functions()], metavar="FUNCTION")
    parser.add_argument("--tests", nargs="+", required=True, help="what pytest is to run")
    parser.add_argument("--sample", type=int, default=10**6, help="try so many of each function")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    options = parser.parse_args(arguments)
    survivors = 0

    def work(bench: Bench) -> None:
        nonlocal survivors
        for name in options.functions:
            tried = mutants(functions()[name])
            random.Random(options.seed).shuffle(tried)
            survivors += _try_all(bench, name, tried[: options.sample])

    tests = [*OPTIONS, "-m", "pg and not nightly", "-k", "not memory", *options.tests]
    ended = pytest.main(tests, plugins=[Bench([], work)])
    if ended != pytest.ExitCode.OK:
        raise RuntimeError(f"the tests end with {ended}")
    return min(survivors, 100)


def _try_all(bench: Bench, name: str, tried: Sequence[str]) -> int:
    """The number of survivors, which are printed."""
    sql, seconds = functions()[name], bench.before.seconds
    names = sorted(seconds, key=seconds.__getitem__)
    num_tried, survivors = 0, []
    for text in tried:
        if not _replace(bench.databases, text):  # PostgreSQL does not take it
            continue
        num_tried += 1
        killers = bench.killers(names, lambda: None)
        print("." if killers else "S", end="", flush=True)
        if not killers:
            survivors.append(text)
    _replace(bench.databases, sql)
    print()
    for text in survivors:
        lines = difflib.unified_diff(
            sql.splitlines(), text.splitlines(), name, name, lineterm="", n=1
        )
        print("\n".join([*lines][2:]))
    killed = num_tried - len(survivors)
    print(
        f"{name}: {num_tried} mutants, {killed} killed ({100 * killed / max(num_tried, 1):.1f} %)"
    )
    return len(survivors)


def _replace(databases: Sequence[str], sql: str) -> bool:
    for dsn in databases:
        try:
            postgres.run_aside(postgres.execute(dsn, sql))
        except asyncpg.PostgresError:
            return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
