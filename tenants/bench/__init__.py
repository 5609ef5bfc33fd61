"""What tenancy costs: ``requests`` (``python -m tenants.bench``), and at size ``scale``."""
