"""Tenants, API keys, limits and the ledger, in PostgreSQL. Never imports torch."""
