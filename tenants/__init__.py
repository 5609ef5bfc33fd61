"""Tenants, API keys, limits and the usage ledger, in PostgreSQL or in memory. Never imports torch."""
