"""Requests between the workers of all hosts."""
