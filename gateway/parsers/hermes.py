"""Calls of Hermes, Qwen and the demo model.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Oslo"}}
</tool_call>
"""

from __future__ import annotations

from gateway.parsers.base import MarkedParser, Region, ToolFormat
from gateway.parsers.json_call import JsonCall

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesParser(MarkedParser):
    """A ``ToolParser``."""

    opens = (OPEN,)

    def _open(self, mark: str) -> Region:
        return JsonCall(CLOSE)


HERMES = ToolFormat(
    name="hermes",
    signs=(OPEN,),
    make_parser=lambda schemas: HermesParser(),
    marks=(OPEN, CLOSE),
    mark=OPEN,
    begin=f'{OPEN}\n{{"name": "%s", "arguments": ',
    end=f"}}\n{CLOSE}",
    separator="\n",
)
