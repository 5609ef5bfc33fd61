"""What Prometheus reads: of this worker, of all workers and of the engine."""
