"""Encoders: from pixels to embeddings that stand for image tokens, a file a family."""
