"""Loads ``sql/*.sql``: named statements, each with a sentence that describes it.

    -- name: list_keys for tenant
    -- A tenant's keys.
    SELECT … ;

After ``for`` stands which rows the statement sees: those of one ``tenant``, or all rows as an
``operator``. Without ``for`` it sees none by itself, only through functions of the database
(``tenants.connections``).

The parser is strict: a file that does not follow the form does not load.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Literal, NamedTuple, cast

Access = Literal["any", "tenant", "operator"]

_NAME = re.compile(r"-- name: ([a-z][a-z0-9_]*)(?: for (tenant|operator))?")


class Query(NamedTuple):
    """One statement: its sentence and its text, without the semicolon."""

    sentence: str
    sql: str
    access: Access = "any"


@cache
def load() -> Mapping[str, Query]:
    """The package's statements by name, which no two of its files share."""
    queries: dict[str, Query] = {}
    for file in resources.files("tenants").joinpath("sql").iterdir():
        try:
            found = parse(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file.name}: {error}") from None
        if twice := queries.keys() & found.keys():
            raise ValueError(f"{file.name}: {min(twice)} stands in another file, too")
        queries |= found
    return MappingProxyType(queries)


def parse(text: str) -> dict[str, Query]:
    """Parse a file of named statements. Raises ``ValueError`` with the line that breaks the form.

    Before the first name only comments may stand. A statement ends with the semicolon that ends its
    last line, and holds no other: one name, one statement.
    """
    queries: dict[str, Query] = {}
    name, start, lines = "", 0, list[str]()
    access: Access = "any"
    for number, line in enumerate(text.splitlines(), start=1):
        match = _NAME.fullmatch(line)
        if match is None:
            if line.startswith("-- name"):
                raise ValueError(
                    f"line {number}: a name line reads '-- name: snake_case for tenant'"
                )
            if not name and line.strip() and not line.startswith("--"):
                raise ValueError(f"line {number}: a statement without a name")
            lines.append(line)
            continue
        if name:
            queries[name] = _query(name, start, lines, access)
        name, start, lines = match[1], number, []
        access = cast("Access", match[2] or "any")
        if name in queries:
            raise ValueError(f"line {number}: a second statement named {name}")
    if not name:
        raise ValueError("no statement in the file")
    queries[name] = _query(name, start, lines, access)
    return queries


def _query(name: str, number: int, lines: list[str], access: Access) -> Query:
    where = f"line {number}: {name}"
    body = "\n".join(lines).strip()
    comments = re.match(r"(?:--[^\n]*(?:\n|$))*", body)
    assert comments is not None  # it matches the empty string
    sentence = " ".join(line.removeprefix("--").strip() for line in comments[0].splitlines())
    sql = body[comments.end() :].strip()
    if not sentence.endswith("."):
        raise ValueError(f"{where} needs a sentence that says what it is for")
    if not sql.endswith(";"):
        raise ValueError(f"{where} does not end with a semicolon")
    sql = sql.removesuffix(";").rstrip()
    if not sql or ";" in sql:
        raise ValueError(f"{where} must be exactly one statement")
    return Query(sentence, sql, access)
