"""The store of tests that need no database: as ``tenants.store``, in memory, with its contract."""
