"""Speculative decoding: guesses at the next tokens that one forward pass checks all at once."""
