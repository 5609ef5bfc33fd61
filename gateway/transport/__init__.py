"""Between the sockets of clients and ASGI: limits on what comes, and how answers are sent."""
