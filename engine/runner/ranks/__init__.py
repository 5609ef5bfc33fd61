"""An engine of several processes: rank 0 plans, and every rank runs each step."""
