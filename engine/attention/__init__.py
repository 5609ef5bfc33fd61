"""Attention backends: interchangeable ways to attend over the paged KV cache."""
