"""Files of tenants, and the batches that run over them when nobody else wants the engine."""
