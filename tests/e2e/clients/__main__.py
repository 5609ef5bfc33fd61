"""``python -m tests.e2e.clients [PART-OF-A-NAME]`` tries the clients against a demo of its own, and
writes the table of ``docs/clients.md`` if all were tried."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.e2e.clients import running
from tests.e2e.demo_process import DemoProcess


def main() -> int:
    wanted = [one for one in running.clients() if all(word in one.name for word in sys.argv[1:])]
    rows, has_failed = [], False
    with (
        tempfile.TemporaryDirectory() as folder,
        DemoProcess(Path(folder) / "data") as demo,
    ):
        ready = demo.wait_ready()
        for client in wanted:
            outcome = running.try_out(client, ready["url"], ready["api_key"])
            rows.append(running.row(client, outcome))
            print(rows[-1], outcome.failures(), sep="\n", flush=True)
            has_failed |= bool(outcome.failures())
    if len(sys.argv) == 1:
        running.write_page(rows)
    return has_failed


if __name__ == "__main__":
    sys.exit(main())
