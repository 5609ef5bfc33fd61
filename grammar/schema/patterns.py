"""Translates regular expressions of JSON Schema into ones with the same meaning in every engine.

JSON Schema means ECMA-262, documents are checked with Python's libraries (``ecma``), and the
grammar engines run Rust's ``regex`` or their own. They disagree about ``\\d \\w \\s .`` and their
negations outside ASCII, about ``$`` before a final newline, about characters new to Unicode, and
about what is a literal. ``Pattern`` accepts only what ECMA-262 and Python both read, and emits an
expression that matches the whole string and whose language lies inside both readings.

It emits two: ``full`` matches the string's value; ``json`` matches its text between the quotes in
a JSON document, for engines that paste a pattern there, and never needs an escape.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from grammar.schema import ecma, unicode_properties

MAX_EXPANDED_SIZE = 5_000
"""Largest size of a pattern with its counted repetitions written out."""

_ANY_CHAR = r"[\s\S]"
_JSON_UNSAFE = r'"\\\x00-\x1f\x7f'
_JSON_CHAR = f"[^{_JSON_UNSAFE}]"


class PatternError(ValueError):
    """The pattern is not one that ECMA-262 and Python both read, and read alike."""


class _Class(NamedTuple):
    """A character class by two readings: ``inside`` lies in both ECMA's and Python's, ``around``
    holds both. Each is the text of items between brackets. ``json`` is ``inside`` less what JSON
    must escape, and ``json_around`` is ``around``, or "" if that takes a Unicode property."""

    inside: str
    around: str
    json: str
    json_around: str


_ZS = r" \u{a0}\u{1680}\u{2000}-\u{200a}\u{202f}\u{205f}\u{3000}"
_ECMA_SPACE = rf"\t-\r{_ZS}\u{{2028}}\u{{2029}}"
_ANY_SPACE = rf"\x1c-\x1f\x85\u{{feff}}{_ECMA_SPACE}"
_CLASSES = {
    "d": _Class("0-9", r"\p{Nd}", "0-9", ""),
    "D": _Class(r"\P{Nd}", "[^0-9]", "", ""),
    "w": _Class("0-9A-Za-z_", r"\p{L}\p{N}_", "0-9A-Za-z_", ""),
    "W": _Class(r"[^\p{L}\p{N}_]", "[^0-9A-Za-z_]", "", ""),
    "s": _Class(_ECMA_SPACE, _ANY_SPACE, " ", _ANY_SPACE),
    "S": _Class(f"[^{_ANY_SPACE}]", f"[^{_ECMA_SPACE}]", "", ""),
}
_DOT = r"[^\n\r\u{2028}\u{2029}]"
_JSON_DOT = rf"[^{_JSON_UNSAFE}\u{{2028}}\u{{2029}}]"
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_SYNTAX = frozenset("^$\\.*+?()[]{}|/-")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed pattern."""

    full: str
    """Matches a whole value; in the syntax of Rust's ``regex``."""
    json: str | None
    """Matches a whole value as it stands in JSON text; None where that would take an escape or a
    Unicode property."""
    size: int
    """Number of items, with counted repetitions written out."""
    prefix: str
    """The literal prefix of every match, as far as it is obvious."""
    exact: bool
    """Whether ECMA-262 and Python agree on every string: nothing lies between their readings."""

    @classmethod
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
        full = _Emitter(json=False).whole(node)
        try:
            json = _Emitter(json=True).whole(node)
        except _NotInJson:
            json = None
        return cls(full, json, node.size, _prefix(node), _is_exact(node))


class _NotInJson(Exception):
    """The pattern has no plain form between the quotes of JSON text."""


def literal(text: str) -> str:
    """An expression for exactly ``text``."""
    return "".join(map(_escaped, text))


# --- The tree. Anchors are nodes until `_Emitter.whole` has resolved them.


@dataclass(frozen=True, slots=True)
class _Text:
    """An expression without anchors, and the same for JSON text."""

    text: str
    json: str | None
    size: int
    char: str = ""
    """The one character it stands for, if it does."""
    exact: bool = True


@dataclass(frozen=True, slots=True)
class _Anchor:
    start: bool
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Repeat:
    body: _Node
    quantifier: str
    times: int

    @property
    def size(self) -> int:
        return max(self.body.size, 1) * max(self.times, 1)


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


_Node = _Text | _Anchor | _Repeat | _Sequence | _Choice


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
                return _Text(_DOT, _JSON_DOT, 1, exact=False)
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
        if self._peek() == "?":
            head = re.compile(r"\?(:|<[^=!>][^>]*>)").match(self._source, self._at)
            if head is None:
                raise PatternError(
                    f"the group at position {start}: only (...), (?:...) and (?<name>...) can be "
                    "enforced, not look-around or flags"
                )
            self._at = head.end()
        node = self._choice()
        if self._peek() != ")":
            raise PatternError(f"unclosed '(' at position {start}")
        self._at += 1
        return node

    def _escape(self) -> _Node:
        start = self._at - 1
        char = self._take()
        if char in _CLASSES:
            found = _CLASSES[char]
            json = f"[{found.json}]" if found.json else None
            return _Text(f"[{found.inside}]", json, 1, exact=False)
        if char in "pP":
            return _Text(f"[{self._property(char, start).inside}]", None, 1, exact=False)
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

    def _property(self, char: str, start: int) -> _Class:
        """The class of ``\\p{...}`` or ``\\P{...}``. Characters that are not assigned belong to
        neither, as a newer Unicode may assign them."""
        name = self._braced(start)
        if name not in unicode_properties.NAMES:
            raise PatternError(f"the property '{name}' at position {start} cannot be enforced")
        having, lacking = rf"\p{{{name}}}", rf"\P{{{name}}}"
        if char == "p":
            return _Class(having, rf"{having}\p{{Cn}}", "", "")
        return _Class(rf"[^{having}\p{{Cn}}]", lacking, "", "")

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
        items: list[str] = []
        json: list[str] = []
        exact = True
        while self._peek() != "]":
            first = self._class_item()
            last = first
            if self._peek() == "-" and self._source[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._class_item()
            if isinstance(first, _Class):
                exact = False
                # Inside a negation the wider reading is the safe one.
                items.append(first.around if negated else first.inside)
                json.append(first.json_around if negated else first.json)
            elif isinstance(last, _Class):
                raise PatternError(f"a bad range in the class at position {start}")
            else:
                items.append(_range(first, last))
                json.append(items[-1] if negated or _json_safe(first, last) else "")
        self._at += 1
        if negated:
            json.append(_JSON_UNSAFE)
        return _Text(
            f"[{'^' * negated}{''.join(items)}]",
            f"[{'^' * negated}{''.join(json)}]" if all(json) else None,
            1,
            exact=exact,
        )

    def _class_item(self) -> str | _Class:
        """One character, or a class such as ``\\d``."""
        start = self._at
        char = self._take()
        if char == "\\":
            char = self._take()
            if char in _CLASSES:
                return _CLASSES[char]
            if char in "pP":
                return self._property(char, start)
            char = "\b" if char == "b" else self._escaped_char(char, start)
        return _no_surrogate(char)

    def _repeated(self, node: _Node) -> _Node:
        match = re.compile(r"([*+?]|\{(\d+)(,(\d*))?\})(\??)").match(self._source, self._at)
        if match is None:
            if re.compile(r"\{,\d").match(self._source, self._at):
                raise PatternError(f"'{{,n}}' at position {self._at}: write '{{0,n}}'")
            return node
        start, self._at = self._at, match.end()
        if self._peek() in ("*", "+", "?", "{"):
            raise PatternError(f"a repeated repetition at position {start}")
        if _has_anchor(node):
            raise PatternError(f"a repeated anchor at position {start} cannot be enforced")
        quantifier, low, comma, high = match[1], match[2], match[3], match[4]
        if low is None:
            return _Repeat(node, quantifier, 1)
        counted = f"{{{int(low)}{f',{high}' if comma else ''}}}"
        return _Repeat(node, counted, max(int(low), int(high or 0)))


def _char(char: str) -> _Text:
    text = _escaped(_no_surrogate(char))
    return _Text(text, text if _json_safe(char, char) else None, 1, char)


def _no_surrogate(char: str) -> str:
    if 0xD800 <= ord(char) <= 0xDFFF:
        raise PatternError("a lone surrogate")
    return char


def _range(first: str, last: str) -> str:
    return _escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}"


def _json_safe(first: str, last: str) -> bool:
    """Whether every character of the range stands for itself in a JSON string."""
    return first >= " " and not any(first <= char <= last for char in '"\\\x7f')


def _escaped(char: str) -> str:
    """As Rust's, Python's and ECMA's engines all read it. Controls by code point."""
    if char in _SYNTAX or char in "&~#":
        return "\\" + char
    return rf"\x{ord(char):02x}" if char < " " or char == "\x7f" else char


def _has_anchor(node: _Node) -> bool:
    match node:
        case _Anchor():
            return True
        case _Sequence(children) | _Choice(children):
            return any(map(_has_anchor, children))
        case _Text() | _Repeat():
            return False


def _holds_anchor(node: _Node) -> bool:
    return not isinstance(node, _Anchor) and _has_anchor(node)


class _Emitter:
    """Writes a tree as an expression for the value, or for its JSON text."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._gap = f"{_JSON_CHAR if json else _ANY_CHAR}*"

    def part(self, node: _Node) -> str:
        """The expression for a node that holds no anchor."""
        match node:
            case _Text():
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
            case _Anchor():
                raise PatternError("an anchor in the middle cannot be enforced")

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
        if len(items) == 1 and _holds_anchor(items[0]):
            return self.whole(items[0], left, right)
        # Only the first and the last item can hold anchors that mean something.
        head = tail = ""
        if left and items and _holds_anchor(items[0]):
            head, items, left = self.whole(items[0], True, False), items[1:], False
        if right and items and _holds_anchor(items[-1]):
            tail, items, right = self.whole(items[-1], False, True), items[:-1], False
        body = head + "".join(map(self.part, items)) + tail
        return f"{self._gap if left else ''}{body}{self._gap if right else ''}"


def _is_exact(node: _Node) -> bool:
    match node:
        case _Text():
            return node.exact
        case _Anchor(start):
            return start  # Python's "$" also matches before a final newline
        case _Repeat(body):
            return _is_exact(body)
        case _Sequence(children) | _Choice(children):
            return all(map(_is_exact, children))


def _prefix(node: _Node) -> str:
    if not isinstance(node, _Sequence) or not node.items or node.items[0] != _Anchor(start=True):
        return ""
    prefix = ""
    for item in node.items[1:]:
        if not isinstance(item, _Text) or not item.char:
            break
        prefix += item.char
    return prefix
