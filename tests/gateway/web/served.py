"""An ASGI app behind a real socket, in a thread, for as long as a test needs it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp


@contextlib.contextmanager
def served(app: ASGIApp, loop: asyncio.AbstractEventLoop | None = None) -> Iterator[str]:
    """The app's URL. ``loop`` is the thread's, closed at the end; by default a new one."""
    loop = loop or asyncio.new_event_loop()
    config = uvicorn.Config(app, port=0, log_level="error", ws="websockets-sansio", lifespan="off")
    server = uvicorn.Server(config)
    # Not this thread's business: signal handlers belong to the test runner.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(),))
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(60)
        loop.close()
