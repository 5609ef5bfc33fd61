"""From a picture's bytes to the pixels and tokens that a model reads. Never imports torch."""
