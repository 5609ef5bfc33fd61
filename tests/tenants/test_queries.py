from __future__ import annotations

import re
from pathlib import Path

import asyncpg
import pytest

import tenants.directory
import tenants.postgres_upkeep
import tenants.shared
import tenants.store
import tenants.webhooks
from tenants.queries import Query, load, parse

_DIRECTORY, _STORE = Path(tenants.directory.__file__), Path(tenants.store.__file__)

GOOD = """\
-- A file.

-- name: one
-- What it is for,
-- in two lines.
SELECT 1
WHERE $1;

-- name: two_2 for operator
-- Another.
SELECT
    2 -- inside
;
"""


def test_parses_names_sentences_and_statements() -> None:
    assert parse(GOOD) == {
        "one": Query("What it is for, in two lines.", "SELECT 1\nWHERE $1"),
        "two_2": Query("Another.", "SELECT\n    2 -- inside", "operator"),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no statement"),
        ("-- only comments\n", "no statement"),
        ("SELECT 1;\n", "line 1: a statement without a name"),
        ("-- name: One\n-- S.\nSELECT 1;", "line 1: a name line"),
        ("-- name: one two\n-- S.\nSELECT 1;", "line 1: a name line"),
        ("-- name: one for all\n-- S.\nSELECT 1;", "line 1: a name line"),
        ("-- name one\n-- S.\nSELECT 1;", "line 1: a name line"),
        ("-- name: a\n-- S.\nSELECT 1;\n-- name: a\n-- S.\nSELECT 2;", "line 4: a second"),
        ("-- name: a\nSELECT 1;", "line 1: a needs a sentence"),
        ("-- name: a\n-- no full stop\nSELECT 1;", "line 1: a needs a sentence"),
        ("-- name: a\n-- S.\nSELECT 1", "line 1: a does not end"),
        ("-- name: a\n-- S.\n", "line 1: a does not end"),
        ("-- name: a\n-- S.\n;", "line 1: a must be exactly one"),
        ("-- name: a\n-- S.\nSELECT 1; DROP TABLE b;", "line 1: a must be exactly one"),
        ("-- name: a\n-- S.\nSELECT 1\n-- name: b\n-- S.\nSELECT 2;", "line 1: a does not end"),
    ],
)
def test_refuses_what_breaks_the_form(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)


def test_every_statement_is_used_and_every_use_is_a_statement() -> None:
    source = _DIRECTORY.read_text() + _STORE.read_text()
    used = set(re.findall(r'self\._(?:one|all)\(\s*"(\w+)"', source))
    source = Path(tenants.shared.__file__).read_text()
    used |= set(re.findall(r'self\._fetch\(\s*[\w.]+,\s*"(\w+)"', source))
    used |= set(re.findall(r'_SQL\["(\w+)"\]', source))
    for name in ("conversations", "chats", "files", "batch_queue"):
        source = _STORE.with_name(f"{name}.py").read_text()
        used |= set(re.findall(r'self\._(?:fetch|of)\(\s*[\w.]+,\s*"(\w+)"', source))
        used |= set(re.findall(r'_SQL\["(\w+)"\]', source))
    source = Path(tenants.postgres_upkeep.__file__).read_text()
    used |= set(re.findall(r'self\._(?:one|all|when_free)\(\s*"(\w+)"', source))
    source = Path(tenants.webhooks.__file__).read_text()
    used |= set(re.findall(r'(?:self\._(?:one|all)\(|_SQL\[)\s*"(\w+)"', source))
    assert used == set(load())


def test_no_sql_outside_the_file() -> None:
    """Statements are never put together from text: there is none in the store to put together."""
    source = _DIRECTORY.read_text() + _STORE.read_text()
    assert not re.search(r"\b(SELECT|INSERT|UPDATE|DELETE)\b", source)


@pytest.mark.pg
@pytest.mark.asyncio
async def test_every_statement_fits_the_schema(pg_dsn: str) -> None:
    connection = await asyncpg.connect(pg_dsn)
    try:
        for query in load().values():
            await connection.prepare(query.sql)
    finally:
        await connection.close()
