"""JSON schemas: what each keyword means, and which backend can enforce it exactly."""
