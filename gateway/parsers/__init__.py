"""Parsers that find reasoning and tool calls in a model's text while it streams. No I/O."""
