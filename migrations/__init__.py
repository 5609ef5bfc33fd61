"""Alembic migrations of the tenants' database, raw SQL, driven without an ini file."""
