"""Deltas as the bytes of Chat Completions and Completions, and as server-sent events."""
