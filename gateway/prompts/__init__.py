"""Messages and texts as token ids."""
