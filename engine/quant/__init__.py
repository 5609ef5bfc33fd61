"""Quantized weights: how checkpoints store them, and linear layers with them."""
