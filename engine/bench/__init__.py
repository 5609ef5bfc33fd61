"""Measuring the engine: how fast, and what each of its parts costs."""
