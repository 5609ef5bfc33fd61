from __future__ import annotations

import pytest

from tenants.dsn import check_dsn, describe
from tenants.errors import InvalidValue


@pytest.mark.parametrize(
    ("dsn", "where"),
    [
        ("postgresql://u:secret@db.example:5433/sluice", "PostgreSQL at db.example:5433/sluice"),
        ("postgres://u:s@cret@db/sluice?password=secret", "PostgreSQL at db/sluice"),
        ("postgresql://u:secret@/sluice?host=/run/pg", "PostgreSQL at /run/pg/sluice"),
        ("postgresql://u:secret@[::1]:5432/x", "PostgreSQL at [::1]:5432/x"),
        ("postgresql://", "PostgreSQL at the default address"),
    ],
)
def test_description_shows_where_and_no_secret(dsn: str, where: str) -> None:
    assert check_dsn(dsn) == dsn
    assert describe(dsn) == where


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "localhost",
        "mysql://u:secret@db/x",
        "postgresql+asyncpg://u:secret@db/x",
        "postgresql://u:secret@db:port/x",
        "postgresql://u:secret@db:99999/x",
        "postgresql://u:secret@[::1/x",
        "postgresql://u:secret@db/x?nonsense",
        "postgresql://u:secret@db/x?host=/run&port=5432port=5432",
        "postgresql://u:secret@/x?host=a,b&port=5432,123456",
    ],
)
def test_what_is_no_dsn_is_refused_without_repeating_it(dsn: str) -> None:
    with pytest.raises(InvalidValue, match="dsn") as caught:
        check_dsn(dsn)
    assert "secret" not in str(caught.value)
