"""Find tool calls in a model's text while it streams. Pure logic, no I/O."""
