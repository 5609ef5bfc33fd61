"""Which keyword of a grammar most likely took too much, for the error when a limit ended the work.

It is an estimate: what the keywords of a schema take when an engine writes them out, and repeats
items. Patterns count most, because only their automata can grow exponentially.
"""

from __future__ import annotations

import json
import re
from typing import Any

from grammar import structural_tag
from grammar.audit import schemas_of
from grammar.regex_size import expanded_size
from grammar.schema.forms import APPLICATORS, subschemas
from grammar.schema.paths import ROOT, child
from grammar.spec import GrammarSpec

_PATTERN = 1_000
_RULE = re.compile(r"^[ \t]*([\w.-]+)[^\n:]*:", re.MULTILINE)


def costliest(spec: GrammarSpec) -> str:
    """The path of the costliest keyword, or the longest rule; the root's path for neither."""
    if spec.kind == "ebnf":
        return _longest_rule(spec.source)
    costs = [_most(part.schema, part.path) for part in schemas_of(spec)]
    if spec.kind == "structural_tag":
        tree = structural_tag.walk(structural_tag.parse(spec.document()))
        regexes = [part for part in tree if isinstance(part, structural_tag.Regex)]
        costs += [(_PATTERN * expanded_size(part.pattern), part.path) for part in regexes]
    return max(costs, default=(0, ROOT))[1]


def _longest_rule(source: str) -> str:
    starts = [*_RULE.finditer(source)]
    ends = [*(rule.start() for rule in starts[1:]), len(source)]
    sizes = [(end - rule.start(), rule[1]) for rule, end in zip(starts, ends, strict=True)]
    return f"the rule '{max(sizes)[1][:40]}'" if sizes else ROOT


def _most(schema: Any, path: str) -> tuple[int, str]:
    """The cost of the costliest keyword of a schema, and its path."""
    most = (0, path)
    stack: list[tuple[Any, str, int]] = [(schema, path, 1)]
    while stack:
        node, where, times = stack.pop()
        if not isinstance(node, dict):
            continue
        for keyword, value in node.items():
            most = max(most, (times * _cost(keyword, value), child(where, keyword)))
        repeated = times * int(max(node.get("minItems", 1), node.get("maxItems", 1)))
        for sub, below in subschemas(node, where):
            is_item = below == child(where, "items")
            stack.append((sub, below, repeated if is_item else times))
    return most


def _cost(keyword: str, value: Any) -> int:
    """Of a keyword with what it holds, without its subschemas."""
    if keyword == "pattern":
        return _PATTERN * expanded_size(value)
    if keyword == "patternProperties":
        return _PATTERN * sum(map(expanded_size, value))
    if keyword in ("minLength", "maxLength", "minItems", "maxItems"):
        return int(value)
    if keyword in ("enum", "const"):
        return len(json.dumps(value))
    if keyword in ("properties", "required"):
        return len(value) ** 2
    if keyword in APPLICATORS or keyword == "$ref":
        return 10 * len(value) if isinstance(value, list | dict) else 10
    return 0
