"""Tenants, API keys, limits and the ledger, in PostgreSQL or in memory. Never imports torch."""
