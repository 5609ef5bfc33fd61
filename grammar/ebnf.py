"""Measures Lark and GBNF grammars before a compiler sees them.

Compilers recurse from rule to rule, and write the terminals that a terminal names out in full, so
that a short text can take any stack and any memory. What is measured here is linear in the text.
Text that is no grammar gets some measures as well; the compiler refuses it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from grammar.errors import GrammarTooLarge
from grammar.regex_size import expanded_size

MAX_RULES = 1_000
MAX_DEPTH = 450
"""Rules on the longest path through references, each counted with the groups nested in it."""
MAX_ALTERNATIVES = 5_000
MAX_OPERANDS = 8
"""Intersections and complements (``&`` and ``~``) of one terminal, whose automata multiply."""

_HEAD = re.compile(r"^[ \t]*[!?]?([A-Za-z_][\w-]*)[^\n:\"/]*?(?:::=|:)", re.MULTILINE)
_TOKEN = re.compile(
    r"""
      (?P<comment> //[^\n]* | \#[^\n]* )
    | (?P<text> "(?:\\.|[^"\\])*" )
    | /(?P<regex> (?:\\.|[^/\\\n])+ )/
    | (?P<chars> \[ (?:\\.|[^\]\\])* \] )
    | (?P<name> [A-Za-z_][\w-]* )
    | \{ [ ]* (?P<low>\d{1,9}) [ ]* (?:, [ ]* (?P<high>\d{0,9}) [ ]* )? \}
    | (?P<sign> [()&~|] )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(slots=True)
class _Rule:
    name: str
    line: int
    references: list[tuple[str, int]] = field(default_factory=list)
    """The rules that it names, each with how often counted repetitions would write it out."""
    size: int = 0
    """Items of its own, written out."""
    nesting: int = 0
    num_alternatives: int = 1
    num_operands: int = 0


def check(source: str, *, max_size: int, max_text: int) -> None:
    """Raise ``GrammarTooLarge`` naming the rule: for more than ``max_text`` characters of one
    literal, ``max_size`` items of a terminal written out, and the limits above."""
    rules: dict[str, _Rule] = {}
    heads = list(_HEAD.finditer(source))
    if len(heads) > MAX_RULES:
        raise GrammarTooLarge("$", f"{len(heads)} rules, over {MAX_RULES}")
    ends = [head.start() for head in heads[1:]] + [len(source)]
    line, at = 1, 0
    for head, end in zip(heads, ends, strict=False):
        line, at = line + source.count("\n", at, head.start(1)), head.start(1)
        rule = _Rule(head[1], line)
        _read(rule, source, head.end(), end, max_text)
        rules[rule.name] = rule
    _check_depth(rules)
    is_gbnf = "::=" in source
    _check_sizes({n: r for n, r in rules.items() if is_gbnf or n.isupper()}, max_size)


def _read(rule: _Rule, source: str, start: int, end: int, max_text: int) -> None:
    """Read the body of a rule."""
    groups: list[tuple[int, int]] = []  # where each open group begins: references, size
    last = (0, 0)  # where the item begins that a count would multiply
    for found in _TOKEN.finditer(source, start, end):
        here = (len(rule.references), rule.size)
        match found.lastgroup:
            case "comment":
                continue
            case "text":
                rule.size += len(found[0]) - 2
                if len(found[0]) - 2 > max_text:
                    raise _too_large(rule, f"a text of more than {max_text} characters")
            case "regex":
                rule.size += expanded_size(found["regex"])
            case "chars":
                rule.size += 1
            case "name":
                rule.references.append((found["name"], 1))
            case "low" | "high":
                _repeat(rule, last, max(int(found["low"]), int(found["high"] or 0), 1))
                continue
            case _:
                here = _sign(rule, found[0], groups, here)
        last = here


def _sign(
    rule: _Rule, sign: str, groups: list[tuple[int, int]], here: tuple[int, int]
) -> tuple[int, int]:
    """Take a parenthesis or an operator; returns where the item begins that ends with it."""
    if sign == "(":
        groups.append(here)
        rule.nesting = max(rule.nesting, len(groups))
    elif sign == ")":
        return groups.pop() if groups else here
    elif sign == "|":
        rule.num_alternatives += 1
        if rule.num_alternatives > MAX_ALTERNATIVES:
            raise _too_large(rule, f"more than {MAX_ALTERNATIVES} alternatives")
    else:
        rule.num_operands += 1
        if rule.num_operands > MAX_OPERANDS:
            raise _too_large(rule, f"more than {MAX_OPERANDS} operators & and ~")
    return here


def _repeat(rule: _Rule, start: tuple[int, int], times: int) -> None:
    num_references, size = start
    rule.references[num_references:] = [
        (name, times * count) for name, count in rule.references[num_references:]
    ]
    rule.size += (rule.size - size) * (times - 1)


def _check_depth(rules: dict[str, _Rule]) -> None:
    """Follow references as a compiler does: each rule once, at the first place that names it."""
    seen: set[str] = set()
    for root in rules:
        stack = [(root, 0)]
        while stack:
            name, above = stack.pop()
            if name in seen or name not in rules:
                continue
            seen.add(name)
            rule = rules[name]
            depth = above + 1 + rule.nesting
            if depth > MAX_DEPTH:
                raise _too_large(rule, f"nested too deeply: {MAX_DEPTH} references and groups")
            stack += [(other, depth) for other, _ in reversed(rule.references)]


def _check_sizes(rules: dict[str, _Rule], max_size: int) -> None:
    """Sizes with all references written out. Recursion is no terminal, and is not followed."""
    sizes: dict[str, int] = {}
    for root in rules:
        stack = [root]
        opened: set[str] = set()
        while stack:
            rule = rules[stack[-1]]
            left = [n for n, _ in rule.references if n in rules and n not in sizes]
            if rule.name not in opened:
                opened.add(rule.name)
                stack += [name for name in left if name not in opened]
                if rules[stack[-1]] is not rule:
                    continue
            stack.pop()
            size = rule.size + sum(count * sizes.get(n, 1) for n, count in rule.references)
            if size > max_size and rule.references:
                raise _too_large(rule, f"{_shown(size)} items written out, over {max_size}")
            sizes[rule.name] = size


def _shown(size: int) -> str:
    return str(size) if size < 10**9 else "more than a billion"


def _too_large(rule: _Rule, problem: str) -> GrammarTooLarge:
    name = rule.name if len(rule.name) <= 80 else f"{rule.name[:77]}..."
    return GrammarTooLarge("$", f"line {rule.line}: the rule '{name}': {problem}")
