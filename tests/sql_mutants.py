"""As ``tests.mutants``, for SQL: which small faults of a function its tests do not notice.

    python -m tests.sql_mutants quota_reserve limit_left --tests tests/tenants/test_reservations.py

Each mutant of a file in ``migrations/sql/functions`` changes one operator, number or statement. It
takes the function's place in the database that the tests' databases are copies of, and the tests
run in a fork until the first one fails.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import migrations
from migrations.source import functions
from tenants.embedded import EmbeddedPostgres
from tests import run_folder
from tests.postgres import FAST, execute, with_database

TIMEOUT_S = 600.0
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
        changed = str(int(text) + 1) if text.isdigit() else _CHANGED.get(text)
        if changed is None or is_assigned or (text == "*" and sql[token.end()] in "),\n"):
            continue
        yield sql[: token.start()] + changed + sql[token.end() :]


def _without_statements(sql: str, begin: int) -> Iterator[str]:
    for statement in _STATEMENT.finditer(sql, begin):
        yield sql[: statement.start()] + statement[1] + "NULL;" + sql[statement.end() :]


class Site:
    """A server whose template of databases has a function changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = EmbeddedPostgres(folder, settings={**FAST, "max_connections": "300"})
        dsn = self._server.start()
        self._template = with_database(dsn, "migrated")
        asyncio.run(execute(dsn, "CREATE DATABASE migrated"))
        asyncio.run(migrations.upgrade(self._template))
        (folder / "migrated").touch()

    def close(self) -> None:
        self._server.stop()

    def replace(self, sql: str) -> bool:
        """Whether PostgreSQL takes it."""
        try:
            asyncio.run(execute(self._template, sql))
        except Exception:
            return False
        return True

    def passes(self, tests: Sequence[str]) -> bool:
        """In a process group of its own, whose programs end with it."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            said = os.open("/dev/null", os.O_WRONLY)
            os.dup2(said, 1)
            os.dup2(said, 2)
            run_folder.configure = self._joined
            options = ("-q", "-x", "-p", "no:cacheprovider", "-k", "not memory")
            os._exit(int(pytest.main([*options, *tests])))
        deadline = time.monotonic() + TIMEOUT_S
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.02)
        return ended[1] == 0

    def _joined(self, config: pytest.Config) -> None:
        config.stash[run_folder.FOLDER] = self.folder


def main() -> int:
    """The number of survivors."""
    parser = argparse.ArgumentParser(prog="python -m tests.sql_mutants", description=__doc__)
    parser.add_argument("functions", nargs="+", choices=[*functions()], metavar="FUNCTION")
    parser.add_argument("--tests", nargs="+", required=True, help="what pytest is to run")
    parser.add_argument("--sample", type=int, default=10**6, help="try so many of each function")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    options = parser.parse_args()
    folder = run_folder.make_folder()
    site = Site(folder)
    num_tried = num_killed = 0
    try:
        if not site.passes(options.tests):
            raise RuntimeError("the tests fail without any change")
        for name in options.functions:
            sql = functions()[name]
            tried = [text for text in mutants(sql) if site.replace(text)]
            random.Random(options.seed).shuffle(tried)
            for text in tried[: options.sample]:
                site.replace(text)
                num_tried += 1
                if not site.passes(options.tests):
                    num_killed += 1
                    print(".", end="", flush=True)
                    continue
                lines = difflib.unified_diff(
                    sql.splitlines(), text.splitlines(), name, name, lineterm="", n=1
                )
                print("\n" + "\n".join([*lines][2:]), flush=True)
            site.replace(sql)
    finally:
        site.close()
    print(f"\n{num_tried} mutants, {num_killed} killed ({100 * num_killed / num_tried:.1f} %)")
    return min(num_tried - num_killed, 100)


if __name__ == "__main__":
    raise SystemExit(main())
