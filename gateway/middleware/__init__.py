"""The middleware, through which every request passes: one pure ASGI class in each module."""
