from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest
import uvloop

from gateway.processes.signals import ENDING, ending_signals_sent_to


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("number", ENDING)
def test_they_are_sent_there(
    new_loop: Callable[[], asyncio.AbstractEventLoop], number: signal.Signals
) -> None:
    async def main() -> signal.Signals:
        heard = asyncio.get_running_loop().create_future()
        with ending_signals_sent_to(heard.set_result):
            os.kill(os.getpid(), number)
            return await asyncio.wait_for(heard, 10)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) is number


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_afterwards_ctrl_c_is_heard_again(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        with ending_signals_sent_to(lambda number: None):
            raise LookupError

    with (
        pytest.raises(LookupError),
        asyncio.Runner(loop_factory=new_loop) as runner,
    ):
        runner.run(main())
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
