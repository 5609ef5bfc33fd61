"""Text to tokens and back, as a model's folder says. Never imports torch."""
