"""Calls of DeepSeek's models.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Since V3.1 the text between the tags of a call is ``get_weather<｜tool▁sep｜>{"city": "Oslo"}``.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.parsers.base import CallName, MarkedParser, ToolFormat
from gateway.parsers.blocks import CallRegion
from gateway.parsers.json_call import JsonObject

CALLS, END_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, END_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"


class _Calls(CallRegion):
    def __init__(self) -> None:
        super().__init__()
        self._name = ""

    def _begin(self) -> bool:
        if (found := self._before(CALL, END_CALLS)) is None:
            return False
        if found[1] == CALL:
            self._read = self._head
        else:
            self.closed = True
        return True

    def _head(self) -> bool:
        if (found := self._before(SEPARATOR)) is None:
            return False
        kind = found[0].strip()
        self._name = "" if kind == "function" else kind
        self._read = self._until_arguments
        return True

    def _until_arguments(self) -> bool:
        if (found := self._before("{", END_CALL)) is None:
            return False
        name = self._name or found[0].partition("\n")[0].strip()
        if not name:
            self._read = self._begin if found[1] == END_CALL else self._tail
            return True
        if found[1] == END_CALL:  # a call without arguments
            self._found += [CallName(name), "{}"]
            self._read = self._begin
            return True
        self._found.append(CallName(name))
        self._arguments = JsonObject()
        self._rest = "{" + self._rest
        self._read = self._in_arguments
        return True

    def _tail(self) -> bool:
        if self._before(END_CALL) is None:
            return False
        self._read = self._begin
        return True


DEEPSEEK = ToolFormat(
    name="deepseek",
    signs=(CALLS,),
    make_parser=lambda schemas: MarkedParser(CALLS, _Calls),
    marks=(CALLS, CALL, SEPARATOR, END_CALL, END_CALLS),
    mark=CALLS,
    opening=CALLS,
    begin=f"{CALL}function{SEPARATOR}%s\n```json\n",
    end=f"\n```{END_CALL}",
    separator="\n",
    closing=END_CALLS,
)

DEEPSEEK_V31 = replace(DEEPSEEK, begin=f"{CALL}%s{SEPARATOR}", end=END_CALL, separator="")
