"""Where the keys and values of past tokens live, and who may read them. Never imports torch."""
