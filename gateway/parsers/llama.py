"""Calls of Llama 3.1 and later: the object alone, perhaps after a tag.

{"name": "get_weather", "parameters": {"city": "Oslo"}}
<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}
"""

from __future__ import annotations

from gateway.parsers.base import MarkedParser, ToolFormat
from gateway.parsers.json_call import JsonCall
from grammar.structural_tag import AnyText, Or, Regex, Sequence

TAG = "<|python_tag|>"


class LlamaParser(MarkedParser):
    """A ``ToolParser``. An object at the very beginning, or after a call, may be a call too."""

    layout = " \t\r\n;"

    def __init__(self) -> None:
        super().__init__(TAG, JsonCall)

    def _find(self, text: str) -> tuple[int, str] | None:
        if self._may_begin:
            start = len(text) - len(text.lstrip(self.layout))
            if text[start : start + 1] == "{":
                return start, ""
        return super()._find(text)

    def _num_certain(self, text: str) -> int:
        if self._may_begin and not text.strip(self.layout):
            return 0
        return super()._num_certain(text)

    @property
    def _may_begin(self) -> bool:
        return self._after_call or not self._has_content


_BLANK = "[ \\t\\r\\n;]*"
# Neither an object nor the tag, for the parser takes both for calls.
_NO_CALL = Or(
    (
        Regex(_BLANK),
        Sequence(
            (Regex(_BLANK + "([^ \\t\\r\\n;{<]|<[^|])"), AnyText(excludes=(TAG,))),
        ),
    )
)

LLAMA = ToolFormat(
    name="llama",
    signs=(TAG, '"parameters": dictionary', "Environment: ipython"),
    make_parser=lambda schemas: LlamaParser(),
    marks=(TAG,),
    mark="",
    text=_NO_CALL,
    begin='{"name": "%s", "parameters": ',
    end="}",
    separator="; ",
)
