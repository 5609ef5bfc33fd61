"""Tasks, timers and queues of asyncio. They know nothing of requests."""
