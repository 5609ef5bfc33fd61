"""Which tokens run in the next step, and whose. Never imports torch."""
