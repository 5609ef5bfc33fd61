"""Suggestions for error messages: msgspec names the wrong field, this adds what would be valid."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

MAX_LISTED = 12
"""A list of more names helps nobody who reads one line."""
MAX_COMPARED = 64
"""Characters of a word that is compared with names: a client may send one that takes seconds."""
_LEAST_RATIO = 0.6
"""How alike two words must be, by ``difflib``'s measure, for one to be a hint to the other: its own
default."""

MAX_NAME, MAX_RULE = 128, 1024
"""Characters of an unknown name and of a broken rule that are kept. A client may send a name of
megabytes, which is cut before anything looks at it."""

_AT = " - at `$"
_UNKNOWN = "Object contains unknown field `"
_MISSING = "Object missing required field `"
_STEP = re.compile(r"\[[^]]*\]|[^.[]+")


class Fault(NamedTuple):
    """What ``msgspec`` says of a wrong value, taken apart; none of it is long."""

    rule: str
    """The rule that was broken."""
    path: str
    """The path of the value, or of the object whose field is unknown or missing."""
    unknown: str | None = None
    """The name of the unknown field."""
    missing: str | None = None
    """The name of the missing field."""

    @classmethod
    def of(cls, error: msgspec.ValidationError) -> Fault:
        rule, _, at = str(error).rpartition(_AT)
        if not rule:
            rule, at = at, ""
        is_unknown, is_missing = rule.startswith(_UNKNOWN), rule.startswith(_MISSING)
        name = rule[len(_UNKNOWN if is_unknown else _MISSING) : -1][:MAX_NAME]
        return cls(
            rule[:MAX_RULE],
            at[: 2 * MAX_NAME].rstrip("`").lstrip("."),
            name if is_unknown else None,
            name if is_missing else None,
        )


def explain(error: msgspec.ValidationError, kind: Any) -> str:
    """``field: fault``, followed by valid alternatives. ``kind``: the type that was being
    decoded."""
    fault = Fault.of(error)
    path = fault.path
    if fault.unknown is not None:
        return f"{join(path, fault.unknown)} is unknown{hint(fault.unknown, names(kind, path))}"
    if fault.missing is not None:
        missing = join(path, fault.missing)
        return f"{missing} is missing{one_of(kind, missing)}"
    return f"{path}: {fault.rule}{one_of(kind, path)}" if path else fault.rule


def one_of(kind: Any, path: str) -> str:
    """To append to an error at ``path`` of a ``kind``: the words allowed there, if it is a
    choice."""
    words = choices(kind, path)
    return f"; use one of {', '.join(words)}" if words else ""


def hint(word: str, known: Iterable[str]) -> str:
    """To append to an error about an unknown ``word``: the closest known one, else all of a few."""
    names = sorted(known)
    if len(word) <= MAX_COMPARED and (close := closest(word, names)) is not None:
        return f"; did you mean {close}?"
    return f"; known are {', '.join(names)}" if 0 < len(names) <= MAX_LISTED else ""


def closest(word: str, names: Iterable[str]) -> str | None:
    """What ``difflib.get_close_matches(word, names, n=1)`` finds, in about a quarter of its time.

    Its ratio of two words is twice the number of characters that match, in blocks that do not
    cross, by the length of both. Neither the characters that both have nor their longest common
    subsequence can be fewer; both are found quickly, and rule out nearly all names.
    """
    letters, masks = _letters(word), _masks(word)
    bounds = [
        (_ratio(len(letters & _letters_of_name(name)), len(word) + len(name)), name)
        for name in names
    ]
    matcher = difflib.SequenceMatcher(b=word)
    best, found = _LEAST_RATIO, None
    for bound, name in sorted(bounds, reverse=True):
        if bound < best:
            break
        if _ratio(_common_subsequence(masks, len(word), name), len(word) + len(name)) < best:
            continue
        matcher.set_seq1(name)
        ratio = matcher.ratio()
        # Of equals the last one in the alphabet, as there.
        if ratio > best or (ratio == best and (found is None or name > found)):
            best, found = ratio, name
    return found


def _ratio(num_matching: int, num_in_all: int) -> float:
    return 2.0 * num_matching / num_in_all if num_in_all else 1.0


def _letters(word: str) -> frozenset[tuple[str, int]]:
    """The multiset of its characters: each with the number of those like it before."""
    counts: dict[str, int] = {}
    letters = []
    for letter in word:
        counts[letter] = count = counts.get(letter, 0) + 1
        letters.append((letter, count))
    return frozenset(letters)


# For names alone: a client may send any number of words.
_letters_of_name = functools.lru_cache(maxsize=1024)(_letters)


def _masks(word: str) -> dict[str, int]:
    """For each character the places where it stands: bit i for ``word[i]``."""
    masks: dict[str, int] = {}
    for place, letter in enumerate(word):
        masks[letter] = masks.get(letter, 0) | 1 << place
    return masks


def _common_subsequence(masks: Mapping[str, int], size: int, name: str) -> int:
    """Length of the longest common subsequence of a word, given as its ``_masks`` and its size, and
    a name: the bit-parallel algorithm of Hyyrö, "Bit-Parallel LCS-length Computation Revisited"
    (2004)."""
    full = (1 << size) - 1
    unmatched = full
    for letter in name:
        hits = unmatched & masks.get(letter, 0)
        unmatched = (unmatched + hits | unmatched - hits) & full
    return size - unmatched.bit_count()


def choices(kind: Any, path: str) -> list[str]:
    """The words allowed at ``path`` (``a.b[...].c``) of a ``kind``; none if anything is."""
    parent, _, name = path.rpartition(".")
    tags = (
        str(info.tag)
        for info in _at(kind, parent)
        if isinstance(info, inspect.StructType) and info.tag_field == name
    )
    values = (
        str(value)
        for info in _at(kind, path)
        if isinstance(info, inspect.LiteralType)
        for value in info.values
    )
    return list(dict.fromkeys([*tags, *values]))


def names(kind: Any, path: str, value: object = None) -> list[str]:
    """The field names of an object at ``path`` of a ``kind``. ``value``: the object, whose tag
    tells which it is where there are several kinds; without it the names of all are returned."""
    return [
        field.encode_name
        for info in _at(kind, path)
        if isinstance(info, inspect.StructType) and _may_be(value, info)
        for field in info.fields
    ]


def _may_be(value: object, info: inspect.StructType) -> bool:
    if info.tag_field is None or not isinstance(value, dict):
        return True
    return bool(value.get(info.tag_field) == info.tag)


def value_at(document: Any, path: str) -> object:
    """The value at ``path`` of a decoded document; None where there is none."""
    found = document
    for step in steps(path):
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step[1:-1].isdecimal():
            found = found[int(step[1:-1])]
        else:
            return None
    return found


def steps(path: str) -> list[str]:
    """The names and the indices (``[0]``, ``[...]``) that a path consists of."""
    return _STEP.findall(path)


def join(path: str, name: str) -> str:
    """The path of the field ``name`` of the object at ``path``."""
    return f"{path}.{name}" if path else name


def _at(kind: Any, path: str) -> list[inspect.Type]:
    """The types allowed at a path."""
    found = [*_members(_type_of(kind))]
    for step in steps(path):
        found = [
            member for info in found for inner in _inside(info, step) for member in _members(inner)
        ]
    return found


# Reading a large struct's annotations takes a millisecond, and anybody may send what is wrong.
_type_of = functools.cache(inspect.type_info)


def _members(info: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.UnionType):
        for member in info.types:
            yield from _members(member)
    elif isinstance(info, inspect.Metadata):
        yield from _members(info.type)
    else:
        yield info


def _inside(info: inspect.Type, step: str) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.StructType):
        yield from (field.type for field in info.fields if field.encode_name == step)
    elif isinstance(info, inspect.DictType):
        yield info.value_type
    elif isinstance(info, inspect.CollectionType):
        yield info.item_type
