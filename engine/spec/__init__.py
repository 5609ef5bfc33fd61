"""Speculative decoding: drafts of the next tokens, which one forward pass checks all at once."""
