"""Estimates how large a regular expression is with its counted repetitions written out.

Enormous ones are refused by this estimate, in any dialect. A character, an escape or a class counts
as one item, a group as its contents, and ``{m,n}`` multiplies what precedes it by its larger bound.
Text that is not an expression gets some size as well; the backend refuses it.
"""

from __future__ import annotations

import re

_COUNT = re.compile(r"\{(\d{1,99})(?:,(\d{0,99}))?\}")
_GROUP_HEAD = re.compile(r"\?(?:P?<\w{1,64}>|[:=!>]|<[=!]|[a-zA-Z-]{1,9}:)")


def expanded_size(source: str) -> int:
    """The number of items, in linear time."""
    totals = [0]  # of each open group, the outermost first
    last = 0  # of the item that a count would multiply
    at = 0
    while at < len(source):
        char = source[at]
        at += 1
        if char == "(":
            totals.append(0)
            last = 0
            if (head := _GROUP_HEAD.match(source, at)) is not None:
                at = head.end()
        elif char == ")" and len(totals) > 1:
            last = totals.pop()
            totals[-1] += last
        elif char == "{" and (count := _COUNT.match(source, at - 1)) is not None:
            times = max(int(count[1]), int(count[2] or 0), 1)
            totals[-1] += last * (times - 1)
            last *= times
            at = count.end()
        else:
            at = _after_item(source, at - 1)
            last = 1
            totals[-1] += 1
    return sum(totals)


def _after_item(source: str, at: int) -> int:
    """The end of the character, escape or class at ``at``."""
    if source[at] == "\\":
        return at + 2
    if source[at] != "[":
        return at + 1
    at += 1
    at += source[at : at + 1] == "^"
    at += source[at : at + 1] == "]"  # the first is itself
    while at < len(source) and source[at] != "]":
        at += 2 if source[at] == "\\" else 1
    return at + 1
