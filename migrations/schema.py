"""Writes ``schema.sql``: the schema that all migrations make together, for reading and for review.

No database is created from it. Run ``python -m migrations.schema`` after adding a migration; a test
compares the file with a migrated database.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import migrations
from tenants.embedded import EmbeddedPostgres, find_binaries

FILE = Path(__file__).parent / "schema.sql"

_HEADING = """\
-- The sum of all migrations, as `python -m migrations.schema` writes it. Only people and a test
-- read this file: databases are made by `sluice migrate`. The months of the ledger are left out.

"""
# Lines with the time or the program that wrote it, and psql's own commands.
_NOISE = re.compile(r"^(--.*|SET .*;|SELECT pg_catalog\.set_config.*|\\.*)$", re.MULTILINE)
_BLANK = re.compile(r"\n{3,}")


def dump(dsn: str) -> str:
    """The schema of a migrated database. Raises ``CalledProcessError``."""
    binaries = find_binaries()
    assert binaries is not None, "pg_dump comes with the embedded PostgreSQL"
    command = [
        *(str(binaries / "pg_dump"), "--dbname", dsn, "--schema-only", "--no-owner"),
        # Partitions of months change with time; their table is in the file.
        *("--exclude-table", "usage_event_2*"),
        *("--exclude-table", "alembic_version"),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return _HEADING + _BLANK.sub("\n\n", _NOISE.sub("", done.stdout)).strip() + "\n"


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="sluice-schema-"))
    server = EmbeddedPostgres(folder, settings={"fsync": "off"})
    try:
        dsn = server.start()
        asyncio.run(migrations.upgrade(dsn))
        FILE.write_text(dump(dsn), encoding="utf-8")
    finally:
        server.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
