"""A gateway worker for ``test_chaos``: the real one, whose engine's reports are written down.

    python -m tests.e2e.chaos_worker CONFIG READY_FILE REPORTS [TOKENS_PER_S]

With a rate, its engine replays a text.

Each report is one line, "request-id tokens", in the system's hands once its tokens are counted.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from engine.client.stream import RequestStream
from engine.client.transport import ReplayProcess
from engine.messages import RequestOutput
from gateway import config as configuration
from gateway.processes import server
from tenants import usage
from tenants.quota import Quota

# Five times as fast as they are: a lease of 30 s, and a look every 5 s at what the dead have left.
LEASE_S = 6.0
ADOPT_S = 1.0


def write_down(reports: Path) -> None:
    file = os.open(reports, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    deliver = RequestStream.deliver

    def reported(
        self: RequestStream, output: RequestOutput, now: float, since: list[float]
    ) -> None:
        deliver(self, output, now, since)
        os.write(file, f"{self.request.request_id} {len(output.new_token_ids)}\n".encode())

    RequestStream.deliver = reported  # type: ignore[method-assign]


def main() -> None:
    config_file, ready_file, reports = map(Path, sys.argv[1:4])
    if rates := sys.argv[4:]:
        assert server.serve.__kwdefaults__ is not None
        replay = partial(ReplayProcess, tokens_per_s=float(rates[0]))
        server.serve.__kwdefaults__["transport"] = replay
    write_down(reports)
    assert Quota.__init__.__kwdefaults__ is not None
    Quota.__init__.__kwdefaults__["lease_s"] = LEASE_S
    usage.ADOPT_S = ADOPT_S

    def on_ready(url: str) -> None:
        draft = ready_file.with_suffix(".draft")
        draft.write_text(url)
        draft.rename(ready_file)

    server.run(configuration.load(config_file), on_ready=on_ready)


if __name__ == "__main__":
    main()
