"""Structured output: specifications compiled to token masks. Never imports torch."""
