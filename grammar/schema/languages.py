"""Regular languages over characters, with intersection, complement and difference.

A ``Language`` is an extended regular expression. Its automaton is built from derivatives
(Brzozowski 1964), which take conjunction and complement as they take everything else. It decides
emptiness, and it is written as an ordinary regular expression for engines that know no complement.

All work is counted in states. ``TooComplex`` says that a language takes more of them than it may.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

MAX_STATES = 1_000
"""States of the automaton of one language."""
MAX_SIZE = 5_000
"""Ranges of characters in a language that is written as a regular expression."""
MAX_NESTING = 80
_LAST = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]
"""Code points from the first to the last of each pair, sorted and apart."""


class TooComplex(ValueError):
    """The language takes too many states, or too long an expression."""


def union(pairs: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def without(ranges: Ranges, *others: tuple[int, int]) -> Ranges:
    return all_but(union([*all_but(ranges), *others]))


def all_but(ranges: Ranges) -> Ranges:
    """All characters outside of ``ranges``. Halves of surrogate pairs are no characters."""
    taken = union([*ranges, (0xD800, 0xDFFF)])
    lows = [0, *(high + 1 for _, high in taken)]
    highs = [*(low - 1 for low, _ in taken), _LAST]
    return tuple((low, high) for low, high in zip(lows, highs, strict=True) if low <= high)


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """A part of an expression. Equal parts are one object, so that they are compared fast."""

    kind: str
    """``set``, ``empty``, ``cat``, ``or``, ``and``, ``not`` or ``repeat``."""
    parts: tuple[_Node, ...]
    chars: Ranges
    low: int
    high: int | None
    nullable: bool
    size: int
    """Ranges of characters when it is written out."""
    nesting: int
    is_plain: bool
    """Whether it has neither ``and`` nor ``not``, so that it can be written as it is."""
    number: int


_interned: dict[object, _Node] = {}
_MAX_INTERNED = 200_000
_num_made = 0


def _make(
    kind: str,
    parts: tuple[_Node, ...] = (),
    chars: Ranges = (),
    low: int = 0,
    high: int | None = 0,
    *,
    nullable: bool = False,
) -> _Node:
    global _num_made
    key = (kind, parts, chars, low, high)
    found = _interned.get(key)
    if found is None:
        if len(_interned) > _MAX_INTERNED:
            # Equal nodes made before and after it are two, which costs time and nothing else.
            _interned.clear()
            _interned.update(_CONSTANTS)
        _num_made += 1
        size = len(chars) + sum(part.size for part in parts) + (kind == "repeat")
        nesting = max((part.nesting for part in parts), default=0) + (kind in ("or", "repeat"))
        is_plain = kind not in ("and", "not") and all(part.is_plain for part in parts)
        found = _interned[key] = _Node(
            kind, parts, chars, low, high, nullable, size, nesting, is_plain, _num_made
        )
    return found


_NOTHING = _make("set")
_EMPTY = _make("empty", nullable=True)
_CHAR = _make("set", chars=all_but(()))
_ANYTHING = _make("repeat", (_CHAR,), low=0, high=None, nullable=True)
_CONSTANTS = dict(_interned)


def _set(chars: Ranges) -> _Node:
    return _make("set", chars=chars)


def _cat(first: _Node, second: _Node) -> _Node:
    if first is _NOTHING or second is _NOTHING:
        return _NOTHING
    if first is _EMPTY:
        return second
    if second is _EMPTY:
        return first
    if first.kind == "cat":
        return _cat(first.parts[0], _cat(first.parts[1], second))
    return _make("cat", (first, second), nullable=first.nullable and second.nullable)


def _or(parts: Iterable[_Node]) -> _Node:
    flat: set[_Node] = set()
    for part in parts:
        flat.update(part.parts if part.kind == "or" else (part,))
    if _ANYTHING in flat:
        return _ANYTHING
    chars = union(chain.from_iterable(part.chars for part in flat if part.kind == "set"))
    flat = {part for part in flat if part.kind != "set"}
    if chars:
        flat.add(_set(chars))
    if any(part.nullable for part in flat if part is not _EMPTY):
        flat.discard(_EMPTY)
    if len(flat) < 2:
        return next(iter(flat), _NOTHING)
    ordered = tuple(sorted(flat, key=lambda part: part.number))
    return _make("or", ordered, nullable=any(part.nullable for part in ordered))


def _and(parts: Iterable[_Node]) -> _Node:
    flat: set[_Node] = set()
    for part in parts:
        flat.update(part.parts if part.kind == "and" else (part,))
    flat.discard(_ANYTHING)
    if _NOTHING in flat:
        return _NOTHING
    if _EMPTY in flat:
        return _EMPTY if all(part.nullable for part in flat) else _NOTHING
    if len(flat) < 2:
        return next(iter(flat), _ANYTHING)
    ordered = tuple(sorted(flat, key=lambda part: part.number))
    return _make("and", ordered, nullable=all(part.nullable for part in ordered))


def _not(part: _Node) -> _Node:
    if part.kind == "not":
        return part.parts[0]
    if part is _NOTHING:
        return _ANYTHING
    if part is _ANYTHING:
        return _NOTHING
    return _make("not", (part,), nullable=not part.nullable)


def _repeat(part: _Node, low: int, high: int | None) -> _Node:
    if high == 0 or part is _EMPTY:
        return _EMPTY
    if part is _NOTHING:
        return _EMPTY if low == 0 else _NOTHING
    if part.nullable:
        low = 0
    if low == high == 1:
        return part
    if part.kind == "repeat" and part.low <= 1 and part.high is None and high is None:
        return _repeat(part.parts[0], min(part.low, low), None)
    return _make("repeat", (part,), low=low, high=high, nullable=low == 0)


class _Alphabet:
    """Characters as bits, one for all those that no set of an expression tells apart."""

    def __init__(self, node: _Node) -> None:
        sets = list(_sets(node) | {_CHAR})
        edges = sorted({0, _LAST + 1}.union(*((a, b + 1) for each in sets for a, b in each.chars)))
        place = {edge: i for i, edge in enumerate(edges)}
        signatures = [0] * (len(edges) - 1)
        for bit, each in enumerate(sets):
            for low, high in each.chars:
                for i in range(place[low], place[high + 1]):
                    signatures[i] |= 1 << bit
        atoms: dict[int, list[tuple[int, int]]] = {}
        for i, signature in enumerate(signatures):
            if signature:  # All characters are in a set; halves of pairs are in none.
                atoms.setdefault(signature, []).append((edges[i], edges[i + 1] - 1))
        self._atoms = list(atoms.values())
        self._masks: dict[_Node, int] = {}
        self._first: dict[_Node, frozenset[_Node]] = {}
        self._derivatives: dict[int, dict[_Node, _Node]] = {}

    def chars(self, mask: int) -> Ranges:
        return union(
            chain.from_iterable(atom for i, atom in enumerate(self._atoms) if mask >> i & 1)
        )

    def edges(self, node: _Node) -> dict[_Node, int]:
        """What may follow a first character, each with the atoms of that."""
        classes = [self._mask(_CHAR)]
        for each in self._first_sets(node):
            mask = self._mask(each)
            parts = chain.from_iterable((part & mask, part & ~mask) for part in classes)
            classes = [part for part in parts if part]
        found: dict[_Node, int] = {}
        for part in classes:
            bit = part & -part
            target = self._derivative(node, bit, self._derivatives.setdefault(bit, {}))
            found[target] = found.get(target, 0) | part
        return found

    def _mask(self, node: _Node) -> int:
        """The atoms of a set; of several that an alternative has made one, too."""
        found = self._masks.get(node)
        if found is None:
            starts = [atom[0][0] for atom in self._atoms]
            inside = (any(a <= start <= b for a, b in node.chars) for start in starts)
            found = self._masks[node] = sum(1 << i for i, is_in in enumerate(inside) if is_in)
        return found

    def _first_sets(self, node: _Node) -> frozenset[_Node]:
        """The sets on which the derivatives of a node depend."""
        found = self._first.get(node)
        if found is None:
            if node.kind == "set":
                found = frozenset((node,))
            else:
                ends = node.kind == "cat" and not node.parts[0].nullable
                parts = node.parts[:1] if ends else node.parts
                found = frozenset[_Node]().union(*map(self._first_sets, parts))
            self._first[node] = found
        return found

    def _derivative(self, node: _Node, bit: int, memo: dict[_Node, _Node]) -> _Node:
        """What may follow a character, which the bit stands for."""
        found = memo.get(node)
        if found is None:
            found = memo[node] = self._derived(node, bit, memo)
        return found

    def _derived(self, node: _Node, bit: int, memo: dict[_Node, _Node]) -> _Node:
        parts = node.parts
        if node.kind == "set":
            return _EMPTY if self._mask(node) & bit else _NOTHING
        if node.kind == "empty":
            return _NOTHING
        first = self._derivative(parts[0], bit, memo)
        match node.kind:
            case "cat":
                led = _cat(first, parts[1])
                if not parts[0].nullable:
                    return led
                return _or((led, self._derivative(parts[1], bit, memo)))
            case "not":
                return _not(first)
            case "repeat":
                high = None if node.high is None else node.high - 1
                return _cat(first, _repeat(parts[0], max(node.low - 1, 0), high))
        others = [self._derivative(part, bit, memo) for part in parts[1:]]
        return (_or if node.kind == "or" else _and)([first, *others])


def _sets(node: _Node) -> set[_Node]:
    found: set[_Node] = set()
    seen = {node}
    stack = [node]
    while stack:
        part = stack.pop()
        if part.kind == "set":
            found.add(part)
        new = {sub for sub in part.parts if sub not in seen}
        seen |= new
        stack += new
    return found


def _restricted(node: _Node, chars: Ranges, memo: dict[_Node, _Node]) -> _Node:
    """The texts of a plain expression that have no other characters."""
    if node not in memo:
        try:
            parts = [_restricted(part, chars, memo) for part in node.parts]
        except RecursionError:
            raise TooComplex("nested too deeply") from None
        match node.kind:
            case "set":
                memo[node] = _set(_common(node.chars, chars))
            case "cat":
                memo[node] = _cat(*parts)
            case "or":
                memo[node] = _or(parts)
            case "repeat":
                memo[node] = _repeat(parts[0], node.low, node.high)
            case _:
                memo[node] = node
    return memo[node]


def _common(one: Ranges, two: Ranges) -> Ranges:
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in two)
    return union((low, high) for low, high in pairs if low <= high)


def _explore(node: _Node, max_states: int) -> Iterator[tuple[_Node, dict[_Node, Ranges]]]:
    """The states of an automaton of the language, and where each leads by which characters."""
    alphabet = _Alphabet(node)
    seen = {node}
    stack = [node]
    while stack:
        state = stack.pop()
        try:
            edges = alphabet.edges(state)
        except RecursionError:
            raise TooComplex("nested too deeply") from None
        yield state, {target: alphabet.chars(mask) for target, mask in edges.items()}
        new = [target for target in edges if target not in seen]
        seen.update(new)
        stack += new
        if len(seen) > max_states:
            raise TooComplex(f"more than {max_states} states")


@dataclass(frozen=True, slots=True)
class Language:
    """A set of texts."""

    _node: _Node

    @classmethod
    def of_chars(cls, ranges: Ranges) -> Language:
        """One character."""
        return cls(_set(ranges))

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Language:
        return cls(_tree(sorted(set(texts)), 0))

    def __and__(self, other: Language) -> Language:
        return Language(_and((self._node, other._node)))

    def __or__(self, other: Language) -> Language:
        return Language(_or((self._node, other._node)))

    def __invert__(self) -> Language:
        return Language(_not(self._node))

    def __sub__(self, other: Language) -> Language:
        return self & ~other

    def __add__(self, other: Language) -> Language:
        """A text of this one, then one of the other."""
        return Language(_cat(self._node, other._node))

    def repeated(self, low: int, high: int | None) -> Language:
        return Language(_repeat(self._node, low, high))

    @property
    def is_nullable(self) -> bool:
        """Whether the empty text is in it."""
        return self._node.nullable

    def is_empty(self) -> bool:
        """Raises ``TooComplex``."""
        if self._node.is_plain:
            return self._node is _NOTHING
        return not any(state.nullable for state, _ in _explore(self._node, MAX_STATES))

    def is_disjoint(self, other: Language) -> bool:
        """Raises ``TooComplex``."""
        one, two = self._node, other._node
        if one.is_plain and two.is_plain:
            # Which characters a text must or must not have decides most cases without states.
            one = _restricted(one, union(chain.from_iterable(s.chars for s in _sets(two))), {})
            two = _restricted(two, union(chain.from_iterable(s.chars for s in _sets(one))), {})
        return Language(_and((one, two))).is_empty()

    def __contains__(self, text: str) -> bool:
        alphabet, state = _Alphabet(self._node), self._node
        for char in text:
            edges = alphabet.edges(state)
            code = ord(char)
            for target, mask in edges.items():
                if any(low <= code <= high for low, high in alphabet.chars(mask)):
                    state = target
                    break
            else:
                return False
        return state.nullable

    def regexes(self) -> list[str]:
        """Expressions that the whole text matches, each of them. Engines combine them faster than
        one can be written. Raises ``TooComplex``."""
        parts = self._node.parts if self._node.kind == "and" else (self._node,)
        return [Language(part).regex() for part in parts]

    def regex(self) -> str:
        """An expression that the whole text matches, in the syntax of ECMA's and of Rust's
        engines. Raises ``TooComplex``."""
        node = self._node if self._node.is_plain else _plain(self._node)
        if node.size > MAX_SIZE or node.nesting > MAX_NESTING:
            raise TooComplex("its expression is too long")
        return _written(node)


NOTHING = Language(_NOTHING)
EMPTY = Language(_EMPTY)
"""Only the empty text."""
ANYTHING = Language(_ANYTHING)


def _tree(texts: list[str], at: int) -> _Node:
    """Texts that are sorted and begin alike, up to ``at``, from there."""
    branches: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > at:
            branches.setdefault(text[at], []).append(text)
    tails: dict[_Node, list[tuple[int, int]]] = {}
    for char, with_it in branches.items():
        if len(with_it) == 1:
            tail = _EMPTY
            for later in reversed(with_it[0][at + 1 :]):
                tail = _cat(_set(((ord(later),) * 2,)), tail)
        else:
            tail = _tree(with_it, at + 1)
        tails.setdefault(tail, []).append((ord(char), ord(char)))
    options = [_cat(_set(union(chars)), tail) for tail, chars in tails.items()]
    return _or([*options, *([_EMPTY] if len(texts) > 0 and len(texts[0]) == at else [])])


def _plain(node: _Node) -> _Node:
    """The same language without ``and`` and ``not``, by elimination of states."""
    edges = _minimal(node)
    if not edges:
        return _NOTHING
    before: dict[int, set[int]] = {state: set() for state in edges}
    for state, targets in edges.items():
        for target in targets:
            before[target].add(state)
    while len(edges) > 2:  # the start, 0, and the end, 1, are left
        state = min(
            (s for s in edges if s > 1),
            key=lambda s: (len(before[s]) * len(edges[s]), sum(e.size for e in edges[s].values())),
        )
        _eliminate(state, edges, before)
    return edges[0].get(1, _NOTHING)


_Edges = dict[int, dict[int, _Node]]


def _eliminate(state: int, edges: _Edges, before: dict[int, set[int]]) -> None:
    out = edges.pop(state)
    sources = before.pop(state) - {state}
    own = out.pop(state, None)
    loop = _EMPTY if own is None else _repeat(own, 0, None)
    for target in out:
        before[target].discard(state)
    for source in sources:
        first = _cat(edges[source].pop(state), loop)
        for target, label in out.items():
            through = _cat(first, label)
            direct = edges[source].get(target, _NOTHING)
            through = edges[source][target] = _or((direct, through))
            if through.size > MAX_SIZE:
                raise TooComplex("its expression is too long")
            before[target].add(source)


def _minimal(node: _Node) -> _Edges:
    """The smallest automaton, whose start is 0 and whose only end is 1. States that lead to no end
    are left out."""
    states = dict(_explore(node, MAX_STATES))
    block = {state: int(state.nullable) for state in states}
    num_blocks = 0
    while len(set(block.values())) != num_blocks:
        num_blocks = len(set(block.values()))
        known: dict[object, int] = {}
        refined = {}
        for state, edges in states.items():
            moves: dict[int, list[tuple[int, int]]] = {}
            for target, chars in edges.items():
                moves.setdefault(block[target], []).extend(chars)
            key = (block[state], tuple(sorted((b, union(c)) for b, c in moves.items())))
            refined[state] = known.setdefault(key, len(known))
        block = refined
    found: _Edges = {0: {block[node] + 2: _EMPTY}, 1: {}}
    for state, edges in states.items():
        targets = found.setdefault(block[state] + 2, {})
        if targets:
            continue
        for target, chars in edges.items():
            place = block[target] + 2
            targets[place] = _or((targets.get(place, _NOTHING), _set(chars)))
        if state.nullable:
            targets[1] = _EMPTY
    return _without_dead(found)


def _without_dead(edges: _Edges) -> _Edges:
    before: dict[int, list[int]] = {}
    for state, targets in edges.items():
        for target in targets:
            before.setdefault(target, []).append(state)
    alive, stack = {1}, [1]
    while stack:
        new = [source for source in before.get(stack.pop(), ()) if source not in alive]
        alive.update(new)
        stack += new
    if 0 not in alive:
        return {}
    return {
        state: {target: label for target, label in targets.items() if target in alive}
        for state, targets in edges.items()
        if state in alive
    }


def _written(node: _Node) -> str:
    match node.kind:
        case "set":
            return written_class(node.chars)
        case "cat":
            return "".join(map(_written, node.parts))
        case "or":
            options = "|".join(_written(part) for part in node.parts if part is not _EMPTY)
            return f"(?:{options}){'?' if _EMPTY in node.parts else ''}"
        case "repeat":
            body = node.parts[0]
            text = _written(body) if body.kind == "set" else f"(?:{_written(body)})"
            return text + _quantifier(node.low, node.high)
    return ""


def _quantifier(low: int, high: int | None) -> str:
    match low, high:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


_SYNTAX = frozenset("^$\\.*+?()[]{}|/-&~#")


def escaped(char: str) -> str:
    """The character as ECMA's, Rust's and Python's engines all read it."""
    if char in _SYNTAX:
        return "\\" + char
    return rf"\x{ord(char):02x}" if char < " " or char == "\x7f" else char


@lru_cache(maxsize=1024)
def written_class(chars: Ranges) -> str:
    """A class of characters as an expression. derivre lets ``"`` and ``\\`` into JSON where a
    class has all control characters but not both. NUL, which is never generated, is one of them."""
    if not all(any(low <= ord(char) <= high for low, high in chars) for char in '"\\'):
        chars = without(chars, (0, 0))
    if chars == _CHAR.chars or not chars:
        return r"[\s\S]" if chars else r"[^\s\S]"
    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        return escaped(chr(chars[0][0]))
    others = all_but(chars)
    negated = len(others) < len(chars)
    return f"[{'^' * negated}{written_ranges(others if negated else chars)}]"


def written_ranges(chars: Ranges) -> str:
    """What stands between the brackets of a class."""
    return "".join(
        escaped(chr(low)) if low == high else f"{escaped(chr(low))}-{escaped(chr(high))}"
        for low, high in chars
    )
