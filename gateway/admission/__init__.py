"""Whether a request may run: its fields, as token ids, sampling parameters and a reservation."""
