"""Reads regular expressions of JSON Schema, which are ECMA-262's, and writes them for engines that
run Rust's ``regex`` or their own.

A ``Pattern`` is written twice: ``full`` matches the string's value; ``json`` matches its text
between the quotes in a JSON document, for engines that paste a pattern there, and never needs an
escape. ``language`` is what is to be combined with other patterns, and decides look-ahead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from grammar.schema import ecma, unicode_properties
from grammar.schema.languages import (
    ANYTHING,
    EMPTY,
    NOTHING,
    Language,
    Ranges,
    TooComplex,
    all_but,
    union,
    without,
    written_class,
    written_ranges,
)

MAX_EXPANDED_SIZE = 5_000
"""Largest size of a pattern with its counted repetitions written out."""

_ANY_CHAR = r"[\s\S]"
_JSON_UNSAFE: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F))
_JSON_CHAR = r'[^"\\\x00-\x1f\x7f]'
_ALL = all_but(())

_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}


class PatternError(ValueError):
    """The pattern is none, or has what cannot be enforced."""


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern."""

    full: tuple[str, ...]
    """Each matches a whole value; in the syntax of Rust's ``regex``. Several for look-ahead."""
    size: int
    """Number of items, with counted repetitions written out."""
    _node: _Node

    @classmethod
    @lru_cache(maxsize=256)
    def parse(cls, source: str) -> Pattern:
        """Parse a pattern. Raises ``PatternError``."""
        try:
            ecma.check(source)
            node = _Parser(source).parse()
        except ecma.Unreadable as error:
            raise PatternError(f"not a regular expression: {error}") from None
        except RecursionError:
            raise PatternError("nested too deeply") from None
        if node.size > MAX_EXPANDED_SIZE:
            raise PatternError(
                f"its repetitions expand to {node.size}, over {MAX_EXPANDED_SIZE} items"
            )
        full: tuple[str, ...]
        try:
            full = (_Emitter(json=False).whole(node),)
        except _Irregular:
            try:
                full = tuple(_language(node).regexes())
            except TooComplex as error:
                raise PatternError(f"its assertions take too much: {error}") from None
        return cls(full, node.size, node)

    @cached_property
    def json(self) -> str | None:
        """Matches a whole value as it stands in JSON text; None where that would take an escape, a
        Unicode property or an assertion."""
        try:
            return _Emitter(json=True).whole(self._node)
        except (_NotInJson, _Irregular):
            return None

    @property
    def prefix(self) -> str:
        """The beginning of every match, as far as it is obvious."""
        items = self._node.items if isinstance(self._node, _Sequence) else ()
        if not items or items[0] != _Anchor(start=True):
            return ""
        prefix = ""
        for item in items[1:]:
            if not isinstance(item, _Chars) or (char := item.only) is None:
                break
            prefix += char
        return prefix

    @cached_property
    def language(self) -> Language:
        """The texts in which the pattern is found. Raises ``PatternError`` if it has what only
        engines know: Unicode properties."""
        return _language(self._node)


class _Irregular(Exception):
    """An assertion stands where it cannot be written without looking at what follows."""


class _NotInJson(Exception):
    """The pattern has no plain form between the quotes of JSON text."""


# --- The tree. Anchors are nodes until `_Emitter.whole` has resolved them.


@dataclass(frozen=True, slots=True)
class _Chars:
    """One character of a set."""

    ranges: Ranges
    properties: str = ""
    """Unicode properties, as they stand in a class of an engine, of which more characters are."""
    negated: bool = False
    """Whether it is one of the others."""
    size: int = 1

    @property
    def text(self) -> str:
        if self.properties:
            # NUL is left out as in ``written_class``.
            nul = (0, 0)
            ranges = union([*self.ranges, nul]) if self.negated else without(self.ranges, nul)
            inside = f"{written_ranges(ranges)}{self.properties}"
            return f"[{'^' * self.negated}{inside}]"
        return written_class(self.all)

    @property
    def all(self) -> Ranges:
        if self.properties:
            raise PatternError("a Unicode property cannot be combined with other patterns")
        return all_but(self.ranges) if self.negated else self.ranges

    @property
    def only(self) -> str | None:
        """The only character, if there is one."""
        is_one = not self.properties and not self.negated and len(self.ranges) == 1
        low, high = self.ranges[0] if is_one else (0, 1)
        return chr(low) if low == high else None

    @property
    def json(self) -> str | None:
        if self.properties:
            return None
        safe = without(self.all, *_JSON_UNSAFE)
        return written_class(safe) if safe else None


@dataclass(frozen=True, slots=True)
class _Anchor:
    start: bool
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Look:
    """What must follow (``is_there``) or must not."""

    body: _Node
    is_there: bool

    @property
    def size(self) -> int:
        return self.body.size


@dataclass(frozen=True, slots=True)
class _Repeat:
    body: _Node
    quantifier: str
    low: int
    high: int | None

    @property
    def size(self) -> int:
        return max(self.body.size, 1) * max(self.low, self.high or 0, 1)


@dataclass(frozen=True, slots=True)
class _Sequence:
    items: tuple[_Node, ...]

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)


@dataclass(frozen=True, slots=True)
class _Choice:
    options: tuple[_Node, ...]

    @property
    def size(self) -> int:
        return sum(option.size for option in self.options)


_Node = _Chars | _Anchor | _Look | _Repeat | _Sequence | _Choice


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._source):
            raise PatternError(f"unbalanced ')' at position {self._at}")
        return node

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise PatternError("it ends too early")
        self._at += 1
        return char

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        items: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            items.append(self._repeated(self._atom()))
        return items[0] if len(items) == 1 else _Sequence(tuple(items))

    def _atom(self) -> _Node:
        start = self._at
        match self._take():
            case "^":
                return _Anchor(start=True)
            case "$":
                return _Anchor(start=False)
            case ".":
                return _Chars(ecma.DOT)
            case "[":
                return self._brackets()
            case "(":
                return self._group()
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise PatternError(f"nothing to repeat at position {start}")
            case "{" if re.match(r"[\d,]", self._peek()):
                raise PatternError(f"a lone '{{' at position {start}: write '\\{{'")
            case char:
                return _char(char)

    def _group(self) -> _Node:
        start = self._at - 1
        look = ""
        if self._peek() == "?":
            head = re.compile(r"\?(:|[=!]|<[^=!>][^>]*>)").match(self._source, self._at)
            if head is None:
                raise PatternError(
                    f"the group at position {start}: look-behind and flags cannot be enforced, "
                    "but (...), (?:...), (?<name>...), (?=...) and (?!...) can"
                )
            self._at = head.end()
            look = head[1] if head[1] in "=!" else ""
        node = self._choice()
        if self._peek() != ")":
            raise PatternError(f"unclosed '(' at position {start}")
        self._at += 1
        return _Look(node, look == "=") if look else node

    def _escape(self) -> _Node:
        start = self._at - 1
        char = self._take()
        if char in ecma.CLASSES:
            return _Chars(ecma.CLASSES[char])
        if char in "pP":
            return _Chars((), self._property(char, start))
        if char in "bB":
            raise PatternError(f"a word boundary at position {start} cannot be enforced")
        return _char(self._escaped_char(char, start))

    def _escaped_char(self, char: str, start: int) -> str:
        """The character that an escape stands for, ``char`` being the one after the backslash."""
        if char == "u" and self._peek() == "{":
            return chr(int(self._braced(start), 16))
        if char == "c":
            return chr(ord(self._take()) % 32)
        if char in "xu":
            digits = self._source[self._at : self._at + (2 if char == "x" else 4)]
            self._at += len(digits)
            return chr(int(digits, 16))  # Python's parser has checked the digits
        if char == "0" and not self._peek().isdigit():
            return "\0"
        if char in "123456789" or char == "0":
            raise PatternError(f"a back-reference at position {start} cannot be enforced")
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isascii() and char.isalnum():
            raise PatternError(f"the escape '\\{char}' at position {start}")
        return char

    def _property(self, char: str, start: int, *, negated: bool = False) -> str:
        """``\\p{...}`` or ``\\P{...}`` in a class, which may be negated. Characters that are not
        assigned belong to neither, as a newer Unicode may assign them."""
        name = self._braced(start)
        if name not in unicode_properties.NAMES:
            raise PatternError(f"the property '{name}' at position {start} cannot be enforced")
        having, lacking = rf"\p{{{name}}}", rf"\P{{{name}}}"
        if char == "p":
            return rf"{having}\p{{Cn}}" if negated else having
        return lacking if negated else rf"[^{having}\p{{Cn}}]"

    def _braced(self, start: int) -> str:
        end = self._source.find("}", self._at)
        if self._peek() != "{" or end < 0:
            raise PatternError(f"the escape at position {start}: write its name in braces")
        text, self._at = self._source[self._at + 1 : end], end + 1
        return text

    def _brackets(self) -> _Node:
        start = self._at - 1
        negated = self._peek() == "^"
        self._at += negated
        if self._peek() == "]":
            raise PatternError(f"']' right after '[' at position {start}: write '\\]'")
        pairs: list[tuple[int, int]] = []
        properties = ""
        while self._peek() != "]":
            first = self._class_item(negated)
            if isinstance(first, str):
                properties += first
                continue
            last = first
            if self._peek() == "-" and self._source[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                end = self._class_item(negated)
                if isinstance(end, str) or len(first) > 1 or len(end) > 1:
                    raise PatternError(f"a bad range in the class at position {start}")
                last = end
            pairs += [(first[0][0], last[0][1])] if len(first) == 1 else first
        self._at += 1
        return _Chars(union(pairs), properties, negated)

    def _class_item(self, negated: bool) -> Ranges | str:
        """One character, a class such as ``\\d``, or a Unicode property."""
        start = self._at
        char = self._take()
        if char == "\\":
            char = self._take()
            if char in ecma.CLASSES:
                return ecma.CLASSES[char]
            if char in "pP":
                return self._property(char, start, negated=negated)
            char = "\b" if char == "b" else self._escaped_char(char, start)
        return ((ord(_no_surrogate(char)),) * 2,)

    def _repeated(self, node: _Node) -> _Node:
        match = re.compile(r"([*+?]|\{(\d+)(,(\d*))?\})(\??)").match(self._source, self._at)
        if match is None:
            if re.compile(r"\{,\d").match(self._source, self._at):
                raise PatternError(f"'{{,n}}' at position {self._at}: write '{{0,n}}'")
            return node
        start, self._at = self._at, match.end()
        if self._peek() in ("*", "+", "?", "{"):
            raise PatternError(f"a repeated repetition at position {start}")
        if match[2] is None:
            low, high = int(match[1] == "+"), 1 if match[1] == "?" else None
            return _Repeat(node, match[1], low, high)
        low = int(match[2])
        high = low if match[3] is None else int(match[4]) if match[4] else None
        counted = f"{{{low}{'' if match[3] is None else f',{match[4]}'}}}"
        return _Repeat(node, counted, low, high)


def _char(char: str) -> _Chars:
    return _Chars(((ord(_no_surrogate(char)),) * 2,))


def _no_surrogate(char: str) -> str:
    if 0xD800 <= ord(char) <= 0xDFFF:
        raise PatternError("a lone surrogate")
    return char


def _has_assertion(node: _Node) -> bool:
    match node:
        case _Anchor() | _Look():
            return True
        case _Sequence(children) | _Choice(children):
            return any(map(_has_assertion, children))
        case _Repeat(body):
            return _has_assertion(body)
        case _Chars():
            return False


def _holds_assertion(node: _Node) -> bool:
    return not isinstance(node, _Anchor) and _has_assertion(node)


class _Emitter:
    """Writes a tree as an expression for the value, or for its JSON text."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._gap = f"{_JSON_CHAR if json else _ANY_CHAR}*"

    def part(self, node: _Node) -> str:
        """The expression for a node without assertions."""
        match node:
            case _Chars():
                text = node.json if self._json else node.text
                if text is None:
                    raise _NotInJson
                return text
            case _Repeat(body, quantifier):
                return f"(?:{self.part(body)}){quantifier}"
            case _Sequence(items):
                return "".join(map(self.part, items))
            case _Choice(options):
                return f"(?:{'|'.join(map(self.part, options))})"
            case _Anchor() | _Look():
                raise _Irregular

    def whole(self, node: _Node, left: bool = True, right: bool = True) -> str:
        """The expression for the whole string, where a search may begin before the node (``left``)
        and end behind it (``right``) unless an anchor says otherwise."""
        if isinstance(node, _Choice):
            options = (self.whole(option, left, right) for option in node.options)
            return f"(?:{'|'.join(options)})"
        items: list[_Node] = list(node.items) if isinstance(node, _Sequence) else [node]
        if left and items and items[0] == _Anchor(start=True):
            items, left = items[1:], False
        if right and items and items[-1] == _Anchor(start=False):
            items, right = items[:-1], False
        if any(isinstance(item, _Look | _Repeat) and _has_assertion(item) for item in items):
            raise _Irregular
        if len(items) == 1 and _holds_assertion(items[0]):
            return self.whole(items[0], left, right)
        # Only the first and the last item can hold anchors that mean something.
        head = tail = ""
        if left and items and _holds_assertion(items[0]):
            head, items, left = self.whole(items[0], True, False), items[1:], False
        if right and items and _holds_assertion(items[-1]):
            tail, items, right = self.whole(items[-1], False, True), items[:-1], False
        body = head + "".join(map(self.part, items)) + tail
        return f"{self._gap if left else ''}{body}{self._gap if right else ''}"


def _language(node: _Node) -> Language:
    at_start = _matched(node, True, ANYTHING, ANYTHING)
    later = _matched(node, False, ANYTHING, ANYTHING)
    if not _has_assertion(node):
        return ANYTHING + at_start
    return at_start | (Language.of_chars(_ALL).repeated(1, None) + later)


def _matched(node: _Node, starts: bool, at_start: Language, later: Language) -> Language:
    """What matches the node and then the rest of the pattern.

    The rest may look at whether it begins where the text does, so it is given for both:
    ``at_start`` is used where nothing of the text has been read, ``later`` elsewhere. ``starts``
    tells whether the node itself begins where the text does.
    """
    match node:
        case _Chars():
            return Language.of_chars(node.all) + later
        case _Anchor(start):
            rest = at_start if starts else later
            return (rest if starts else NOTHING) if start else rest & EMPTY
        case _Look(body, is_there):
            rest = at_start if starts else later
            seen = _matched(body, starts, ANYTHING, ANYTHING)
            return rest & seen if is_there else rest - seen
        case _Choice(options):
            found = NOTHING
            for option in options:
                found |= _matched(option, starts, at_start, later)
            return found
        case _Sequence(items):
            for item in reversed(items):
                first = _matched(item, True, at_start, later) if starts else NOTHING
                at_start, later = first, _matched(item, False, later, later)
            return at_start if starts else later
        case _Repeat():
            return _repeatedly(node, starts, at_start, later)


def _repeatedly(node: _Repeat, starts: bool, at_start: Language, later: Language) -> Language:
    if _has_assertion(node.body):
        return _with_assertion(node, starts, at_start, later)
    body = _matched(node.body, False, EMPTY, EMPTY).repeated(node.low, node.high)
    if not starts or at_start == later:
        return body + later
    found = (body - EMPTY) + later
    return found | at_start if body.is_nullable else found


def _with_assertion(node: _Repeat, starts: bool, at_start: Language, later: Language) -> Language:
    """A repetition that may find the end of the text, after which nothing can follow."""
    if node.high == 1:
        once = _matched(node.body, starts, at_start, later)
        return once if node.low else once | (at_start if starts else later)
    goes_on = _without_end(node.body)
    if node.low > 1 or node.high is not None or _has_assertion(goes_on) or at_start != later:
        raise PatternError("a repeated assertion cannot be enforced")
    body = _matched(goes_on, False, EMPTY, EMPTY)
    last = _matched(node.body, False, later & EMPTY, later & EMPTY)
    return (body.repeated(node.low, None) + later) | (body.repeated(0, None) + last)


def _without_end(node: _Node) -> _Node:
    """The node where the text does not end."""
    match node:
        case _Anchor(False):
            return _Choice(())
        case _Choice(options):
            return _Choice(tuple(map(_without_end, options)))
        case _Sequence(items):
            return _Sequence(tuple(map(_without_end, items)))
        case _Repeat(body, quantifier, low, high):
            return _Repeat(_without_end(body), quantifier, low, high)
        case _:
            return node
