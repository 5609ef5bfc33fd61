"""``sluice``, but its engine replays a fixed text at a fixed rate, as that of ``sluice demo
--replay`` does.

    python -m tests.attack.replaying TOKENS_PER_S serve --config sluice.toml
"""

from __future__ import annotations

import sys
from functools import partial
from unittest import mock

from engine.client.transport import ReplayProcess
from gateway import cli
from gateway.processes import server
from gateway.processes.fleet import spawned_fleets


def main() -> None:
    rate = float(sys.argv.pop(1))
    replay = partial(ReplayProcess, tokens_per_s=rate)
    assert server.serve.__kwdefaults__ is not None
    assert spawned_fleets.__kwdefaults__ is not None
    with (
        mock.patch.dict(server.serve.__kwdefaults__, transport=replay),
        mock.patch.dict(spawned_fleets.__kwdefaults__, transport=replay),
    ):
        cli.main()


if __name__ == "__main__":
    main()
