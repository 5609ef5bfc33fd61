"""Calls as Qwen3-Coder writes them: one tag for each argument.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

A value is text where the function's schema says string, and JSON where it is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gateway.parsers.base import CallName, MarkedParser, Region, Schemas, ToolFormat
from gateway.parsers.blocks import BlockRegion

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"


class QwenParser(MarkedParser):
    """A ``ToolParser``."""

    opens = (OPEN,)

    def __init__(self, schemas: Schemas) -> None:
        super().__init__()
        self._schemas = schemas

    def _open(self, mark: str) -> Region:
        return _Call(self._schemas)


class _Call(BlockRegion):
    def __init__(self, schemas: Schemas) -> None:
        super().__init__()
        self._schemas = schemas
        self._types: dict[str, Any] = {}
        self._key = ""
        self._comma = ""
        self._read: Callable[[], bool] = self._outside

    def _step(self) -> bool:
        return self._read()

    def _outside(self) -> bool:
        if (found := self._before(_FUNCTION, CLOSE)) is None:
            return False
        if found[1] == CLOSE:
            self.closed = True
        else:
            self._read = self._function
        return True

    def _function(self) -> bool:
        if (found := self._before(">")) is None:
            return False
        name = found[0].strip()
        properties = self._schemas.get(name, {}).get("properties", {})
        self._types = properties if isinstance(properties, dict) else {}
        self._comma = ""
        self._found += [CallName(name), "{"]
        self._read = self._between
        return True

    def _between(self) -> bool:
        if (found := self._before(_PARAMETER, _END_FUNCTION)) is None:
            return False
        if found[1] == _PARAMETER:
            self._read = self._parameter
        else:
            self._found.append("}")
            self._read = self._outside
        return True

    def _parameter(self) -> bool:
        if (found := self._before(">")) is None:
            return False
        self._key = found[0].strip()
        self._read = self._value
        return True

    def _value(self) -> bool:
        if (found := self._before(_END_PARAMETER)) is None:
            return False
        text = found[0].removeprefix("\n").removesuffix("\n")
        key, value = json.dumps(self._key, ensure_ascii=False), self._json(text)
        self._found.append(f"{self._comma}{key}: {value}")
        self._comma = ", "
        self._read = self._between
        return True

    def _json(self, text: str) -> str:
        schema = self._types.get(self._key)
        is_text = isinstance(schema, dict) and schema.get("type") == "string"
        if not is_text:
            try:
                return json.dumps(json.loads(text), ensure_ascii=False)
            except (ValueError, RecursionError):
                pass
        return json.dumps(text, ensure_ascii=False)


QWEN = ToolFormat(
    name="qwen",
    signs=(_FUNCTION,),
    make_parser=QwenParser,
    marks=(OPEN, CLOSE),
    begin=f"{OPEN}\n{_FUNCTION}%s>\n",
    end=f"{_END_FUNCTION}\n{CLOSE}",
    separator="\n",
    has_json_arguments=False,
)
