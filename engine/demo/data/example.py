"""What one piece of training or test data is: turns, the checks on their answers, the split."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Split = Literal["train", "heldout"]
Message = dict[str, Any]
Check = Callable[[str], bool]

_HELD_OUT_ONE_IN = 12
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_TOOL_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def held_out(key: str | None) -> bool:
    """Whether a key belongs to the held-out split; `None` never does. Stable over runs."""
    return key is not None and zlib.crc32(normalise(key).encode()) % _HELD_OUT_ONE_IN == 0


def normalise(text: str) -> str:
    """Lower case, letters, digits and arithmetic signs only: what makes two prompts the same."""
    return re.sub(r"[^\w+*/%-]+", " ", text.lower()).strip()


@dataclass(frozen=True)
class Turn:
    """One exchange: what goes in (a user or tool message), the reference answer, its check.

    `key` decides the split: a turn whose key is held out never occurs in training.
    """

    kind: str
    inputs: tuple[Message, ...]
    output: Message
    check: Check
    key: str | None = None


@dataclass(frozen=True)
class Example:
    """A chat that ends with the reference answer; `check` judges another answer in its place."""

    kind: str
    messages: list[Message]
    check: Check
    tools: list[dict[str, Any]] = field(default_factory=list)

    @property
    def prompt(self) -> list[Message]:
        return self.messages[:-1]


def say(
    kind: str, prompt: str, answer: str, check: Check | None = None, *, key: str | None = None
) -> Turn:
    """A plain exchange of text; without a check the answer must be exactly the reference."""
    return Turn(
        kind,
        ({"role": "user", "content": prompt},),
        {"role": "assistant", "content": answer},
        check or Exact(answer),
        key,
    )


# --- checks ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exact:
    text: str

    def __call__(self, answer: str) -> bool:
        return answer.strip() == self.text.strip()


@dataclass(frozen=True)
class Mentions:
    """Every group must be hit: a group is hit when one of its phrases occurs as whole words."""

    groups: tuple[tuple[str, ...], ...]

    def __call__(self, answer: str) -> bool:
        return all(any(_has(answer, phrase) for phrase in group) for group in self.groups)


@dataclass(frozen=True)
class FinalNumber:
    """The last number of the answer is the result."""

    value: int

    def __call__(self, answer: str) -> bool:
        numbers = re.findall(r"-?\d+", answer)
        return bool(numbers) and int(numbers[-1]) == self.value


@dataclass(frozen=True)
class JsonEquals:
    """The whole answer is this JSON value, keys in any order."""

    value: Any

    def __call__(self, answer: str) -> bool:
        try:
            return bool(json.loads(answer) == self.value)
        except ValueError:
            return False


@dataclass(frozen=True)
class JsonAbout:
    """A JSON object, not empty, whose keys may have been chosen freely: its values are right.

    `values` holds every key that one may choose, with what it must have.
    """

    values: Mapping[str, Any]

    def __call__(self, answer: str) -> bool:
        try:
            found = json.loads(answer)
        except ValueError:
            return False
        if not isinstance(found, dict) or not found:
            return False
        return all(key in self.values and self.values[key] == found[key] for key in found)


@dataclass(frozen=True)
class OneOf:
    """The answer is one of these texts."""

    texts: frozenset[str]

    def __call__(self, answer: str) -> bool:
        return answer.strip() in self.texts


@dataclass(frozen=True)
class CallsTools:
    """The answer is these calls, as `(name, arguments)`, in this order."""

    calls: tuple[tuple[str, dict[str, Any]], ...]

    def __call__(self, answer: str) -> bool:
        try:
            found = [json.loads(text) for text in _TOOL_CALL.findall(answer)]
        except ValueError:
            return False
        return found == [{"name": name, "arguments": args} for name, args in self.calls]


@dataclass(frozen=True)
class ListsFrom:
    """`count` different list lines, each one of `members`."""

    members: frozenset[str]
    count: int

    def __call__(self, answer: str) -> bool:
        lines = [line for line in answer.splitlines() if re.match(r"(-|\d+\.) ", line)]
        items = {re.sub(r"^(-|\d+\.) ", "", line).strip().lower() for line in lines}
        return len(items) == len(lines) == self.count and items <= self.members


@dataclass(frozen=True)
class Tells:
    """A story: mentions what was asked for, is long enough, ends with a whole sentence."""

    asked: tuple[str, ...]
    min_words: int = 30

    def __call__(self, answer: str) -> bool:
        ends = answer.rstrip().endswith((".", "!"))
        return (
            ends
            and len(answer.split()) >= self.min_words
            and all(_has(answer, phrase) for phrase in self.asked)
        )


@dataclass(frozen=True)
class Verse:
    """A poem of so many lines that mentions what was asked for."""

    asked: str
    num_lines: int

    def __call__(self, answer: str) -> bool:
        return len(answer.strip().splitlines()) == self.num_lines and _has(answer, self.asked)


def mentions(*groups: str | Sequence[str]) -> Mentions:
    return Mentions(tuple((g,) if isinstance(g, str) else tuple(g) for g in groups))


def _has(answer: str, phrase: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", answer, re.IGNORECASE) is not None


# --- phrasing --------------------------------------------------------------------------------


_LEADS = ("Please ", "Hey, ", "Ok, ", "Now ", "please ", "So, ", "hey ", "Hi! ", "Hello, ",
          "can you tell me: ", "pls ", "um, ")  # fmt: skip
_TAILS = (" please", ", please", " Thanks!", " thanks", " pls", "??", "...", " :)", "!!",
          " thank you")  # fmt: skip


def fill(template: str, values: Mapping[str, object]) -> str:
    """Replaces `{name}` by its value; every other brace stays as it is (templates hold JSON)."""
    return _PLACEHOLDER.sub(lambda match: str(values[match[1]]), template)


def phrase(rng: random.Random, templates: Sequence[str], **values: object) -> tuple[str, str]:
    """Picks a phrasing. Returns it as a hurried person would type it, and clean (for the key)."""
    template = rng.choice(templates)
    return fill(roughen(rng, template), values), fill(template, values)


def roughen(rng: random.Random, template: str) -> str:
    """Now and then: lower case, no closing mark, a typo, a polite word. Placeholders stay."""
    roll = rng.random()
    if roll < 0.55:
        return template
    if roll < 0.70:
        return _outside_placeholders(template, str.lower)
    if roll < 0.80:
        return template.rstrip("?!.")
    if roll < 0.85:
        return _outside_placeholders(template, str.lower).rstrip("?!.")
    if roll < 0.90:
        return _typo(rng, template)
    if roll < 0.92:
        rough = _outside_placeholders(_typo(rng, template), str.lower)
        return rough.rstrip("?!.").replace("'", "")
    if roll < 0.93:
        return _outside_placeholders(template, str.upper)
    if roll < 0.97:
        return rng.choice(_LEADS) + template
    return template.rstrip(".!") + rng.choice(_TAILS)


def _outside_placeholders(template: str, change: Callable[[str], str]) -> str:
    parts = re.split(r"(\{\w+\})", template)
    return "".join(part if part.startswith("{") else change(part) for part in parts)


def _typo(rng: random.Random, template: str) -> str:
    words = template.split(" ")
    long = [i for i, word in enumerate(words) if len(word) >= 4 and word.isalpha()]
    for index in rng.sample(long, min(len(long), rng.choice((1, 1, 2)))):
        words[index] = typo(rng, words[index])
    return " ".join(words)


def typo(rng: random.Random, word: str) -> str:
    """A word of at least four letters with two swapped, one missing, doubled or next to it."""
    at = rng.randrange(1, len(word) - 2)
    return rng.choice(
        (
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at + 1 :],
            word[: at + 1] + word[at + 2 :],
            word[:at] + word[at] + word[at:],
            word[:at] + rng.choice("aeiorstn") + word[at + 1 :],
        )
    )


def join_words(words: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
