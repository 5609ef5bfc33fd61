"""The schema and its functions, as the SQL files in ``sql``.

``sql/schema`` has the tables, in groups; the base revision runs its files once, and later revisions
change the tables. ``sql/functions`` has one function a file, with its contract; ``sluice migrate``
brings every function in the database to the text of its file, so a function is changed by editing
it. One whose parameters or result change needs a revision that drops the old one first, because
workers of the version before still call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

FOLDER = Path(__file__).parent / "sql"
_BODY = re.compile(r"^AS \$\$(\n.*\n)\$\$;$", re.MULTILINE | re.DOTALL)
FIND_BODIES = (
    "SELECT proname, prosrc FROM pg_proc "
    "WHERE pronamespace = to_regnamespace('public') AND proname = ANY ($1)"
)
"""The statement whose rows ``differing`` compares; it takes the functions' names."""


def schema(name: str) -> str:
    """A file of ``sql/schema``."""
    return (FOLDER / "schema" / f"{name}.sql").read_text(encoding="utf-8")


@cache
def functions() -> Mapping[str, str]:
    """The statements that make each function, by its name."""
    files = sorted((FOLDER / "functions").glob("*.sql"))
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


def differing(found: Iterable[tuple[str, str]]) -> list[str]:
    """The functions that a database lacks, or has with another body. found: names and bodies."""
    bodies = set(found)
    return [name for name, sql in functions().items() if (name, _body(sql)) not in bodies]


def execute(connection: Connection, script: str) -> None:
    """Run a script of several statements in the connection's transaction."""
    # SQLAlchemy would prepare it, which allows one statement only. It begins its transaction with
    # its own first statement.
    connection.exec_driver_sql("SELECT 1")
    driver = connection.connection.dbapi_connection
    assert driver is not None
    driver.run_async(lambda raw: raw.execute(script))


def replace_functions(connection: Connection) -> None:
    """Make the functions that ``differing`` names as their files say."""
    found = connection.exec_driver_sql(FIND_BODIES, (list(functions()),))
    changed = differing((row.proname, row.prosrc) for row in found)
    # Functions may call each other and use tables that come later, in any order.
    begin = "SET LOCAL check_function_bodies = off;\n"
    if changed:
        execute(connection, begin + "\n".join(functions()[name] for name in changed))


def _body(sql: str) -> str:
    found = _BODY.search(sql)
    assert found is not None, f"a function's file has no body between AS $$ and $$;: {sql[:80]}"
    return found[1]
