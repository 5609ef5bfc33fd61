"""From logits to the next token, per request."""
