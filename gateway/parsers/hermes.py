"""Calls of Hermes, Qwen and the demo model.

<tool_call>
{"name": "get_weather", "arguments": {"city": "Oslo"}}
</tool_call>
"""

from __future__ import annotations

from functools import partial

from gateway.parsers.base import MarkedParser, ToolFormat
from gateway.parsers.json_call import JsonCall

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


HERMES = ToolFormat(
    name="hermes",
    signs=(OPEN,),
    make_parser=lambda schemas: MarkedParser(OPEN, partial(JsonCall, CLOSE)),
    marks=(OPEN, CLOSE),
    mark=OPEN,
    begin=f'{OPEN}\n{{"name": "%s", "arguments": ',
    end=f"}}\n{CLOSE}",
    separator="\n",
)
