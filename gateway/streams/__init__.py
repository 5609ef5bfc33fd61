"""Resumable streams: logs of what was sent, and their readers."""
