"""Quantized weights: how checkpoints store them, and products with them."""
