"""What happens around every request: pure ASGI, one class each."""
