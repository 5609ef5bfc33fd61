"""llguidance: an Earley parser over a derivative-based lexer, built lazily, without start-up cost.

It reports errors as a state, and not as exceptions, at construction and at every mask.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from grammar import structural_tag
from grammar.backends.base import MAX_INDENT, BatchMatcher
from grammar.errors import GrammarTooLarge, InvalidGrammar, MatcherFailed, Unsatisfiable
from grammar.spec import GrammarSpec
from grammar.structural_tag import (
    AnyText,
    ConstString,
    Format,
    JsonSchema,
    Or,
    Regex,
    Tag,
    TagsWithSeparator,
    Token,
    TriggeredTags,
)
from grammar.structural_tag import Sequence as InOrder
from grammar.vocabulary import Mask, Vocabulary

# Where the text is forced, llguidance would allow its canonical tokens only. Forced tokens are
# proposed as drafts instead.
_EXACT_MASKS = '%llguidance {"no_forcing": true}\n'
_JSON_OPTIONS = {
    "whitespace_flexible": True,
    # Some blanks, or one or two line breaks and an indentation: enough for usual layouts, but not
    # for a model that generates nothing but blanks.
    "whitespace_pattern": rf"[ \t]{{1,16}}|[ \t]{{0,4}}(?:\r?\n){{1,2}}[ \t]{{0,{MAX_INDENT}}}",
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
    # One spelling for each string, so that no key can be repeated in another spelling.
    "json_allowed_escapes": 'nrtbf\\"',
}
_COMPACT_JSON_OPTIONS = _JSON_OPTIONS | {"whitespace_flexible": False, "whitespace_pattern": None}
# A unit of fuel is an expression of the lexer, of 150 to 200 bytes; a symbol takes about as much as
# four. Both are counted while a grammar is compiled: 200 KB of usual schemas take 60,000 units.
# 1,000 items of a mask take about 4 ms, for which all others in the batch wait.
_WORK: dict[str, Any] = {
    "initial_lexer_fuel": 300_000,
    "max_grammar_size": 50_000,
    # A lexer state takes 1 to 2 kB; a matcher that needs more fails, and so does its request.
    "max_lexer_states": 50_000,
    # A thousand optional properties take 4,000 items in a row, and at most 10 ms for a mask.
    "max_items_in_row": 5_000,
    "verbose_errors": False,
}
_LIMITS = llguidance.LLParserLimits(**_WORK, step_max_items=25_000)
# A free grammar may be ambiguous, and its items for one mask may then cost 20 µs each: with the
# default of 50,000 a second, for which all others in the batch wait. Few take more than hundreds;
# this many take 30 ms.
_EBNF_LIMITS = llguidance.LLParserLimits(**_WORK, step_max_items=1_500)
# The library does not report its memory. Beside the source it has what it has computed; merges and
# automata take 0.2 to 0.3 MB for every millisecond of compiling.
_ESTIMATED_BYTES_PER_SOURCE_BYTE = 200
_ESTIMATED_BYTES_PER_SECOND = 300_000_000
_NO_TOKENS = "; only a structural tag can ask for tokens, by their ids"
_TOKEN = re.compile(r"<\[|<\|")
"""In Lark. A text may hold the like, which does no harm."""


class LLGuidanceBackend:
    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = llguidance.LLTokenizer(
            # One EOS is enough: ``Matcher`` knows the others, and no grammar of ours names any.
            llguidance.TokenizerWrapper(_Tokens(vocabulary)),
            eos_token=min(vocabulary.eos_token_ids),
        )
        assert self._tokenizer.vocab_size == vocabulary.size

    def compile(self, spec: GrammarSpec) -> LLGuidanceGrammar:
        grammar = _translate(spec)
        started = time.thread_time()
        limits = _EBNF_LIMITS if spec.kind == "ebnf" else _LIMITS
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            self._check_regexes(spec)
            raise _refusal(matcher.get_error())
        computed = (time.thread_time() - started) * _ESTIMATED_BYTES_PER_SECOND
        return LLGuidanceGrammar(
            matcher,
            len(spec.source) * _ESTIMATED_BYTES_PER_SOURCE_BYTE + int(computed),
            names_tokens=_TOKEN.search(grammar) is not None,
        )

    def _check_regexes(self, spec: GrammarSpec) -> None:
        """Raise ``InvalidGrammar`` for the first regex of a structural tag that cannot be
        compiled."""
        if spec.kind != "structural_tag":
            return
        for part in structural_tag.walk(structural_tag.parse(spec.document())):
            if isinstance(part, Regex):
                try:
                    self.compile(GrammarSpec("regex", part.pattern))
                except InvalidGrammar as error:
                    raise InvalidGrammar(part.path, error.message) from None

    def load(self, spec: GrammarSpec, data: bytes) -> LLGuidanceGrammar:
        return self.compile(spec)


class LLGuidanceGrammar:
    def __init__(
        self, prototype: llguidance.LLMatcher, memory_bytes: int, *, names_tokens: bool
    ) -> None:
        self._prototype = prototype
        self._memory_bytes = memory_bytes
        self._names_tokens = names_tokens

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    def dump(self) -> bytes:
        return b""  # Compiling again is as fast.

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._prototype.deep_copy(), forces=not self._names_tokens)


class LLGuidanceMatcher(BatchMatcher):
    def __init__(self, matcher: llguidance.LLMatcher, *, forces: bool) -> None:
        self._matcher = matcher
        self._forces = forces

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.try_consume_tokens([token_id]) == 1)

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)
        self._check()

    def fill(self, row: Mask) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self.settle(row)

    @staticmethod
    def fill_many(
        matchers: Sequence[tuple[LLGuidanceMatcher, int]], rows: Mask, num_threads: int
    ) -> None:
        places = [(matcher._matcher, place) for matcher, place in matchers]
        _executor(num_threads).unsafe_compute_mask_ptr(
            places, rows.ctypes.data, rows[0].nbytes, len(rows)
        )

    def settle(self, row: Mask) -> None:
        if self._matcher.get_error().startswith("NoExtensionBias"):
            row.fill(0)  # no token fits, which is not a limit of ours
        else:
            self._check()

    def is_accepting(self) -> bool:
        return bool(self._matcher.is_accepting())

    def forced_bytes(self) -> bytes:
        # 1.9 computes a wrong mask after it has looked for bytes and found a special token.
        return bytes(self._matcher.compute_ff_bytes()) if self._forces else b""

    def _check(self) -> None:
        if self._matcher.is_error():
            raise MatcherFailed(_plain(self._matcher.get_error()))


@cache
def _executor(num_threads: int) -> llguidance.LLExecutor:
    return llguidance.LLExecutor(num_threads)


class _Tokens:
    """The shape in which llguidance's ``TokenizerWrapper`` takes a vocabulary."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        # It tells special tokens apart by their names.
        self.tokens = [
            f"<|{i}|>".encode() if i in vocabulary.special_ids else token
            for i, token in enumerate(vocabulary.tokens)
        ]
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.eos_token_id = min(vocabulary.eos_token_ids)
        self._tokenize = vocabulary.tokenize

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenize(text)


def _translate(spec: GrammarSpec) -> str:
    """The source as a Lark grammar."""
    match spec.kind:
        case "json_schema":
            body = f"start: {_json(spec.document(), spec)}"
        case "json_object":
            body = f"start: {_json({'type': 'object'}, spec)}"
        case "regex":
            body = f"start: {_regex(spec.source)}"
        case "choice":
            body = "start: " + " | ".join(map(_literal, spec.document()))
        case "ebnf":
            body = _from_ebnf(spec.source)
        case "structural_tag":
            body = _LarkWriter(spec).write(structural_tag.parse(spec.document()))
    return _EXACT_MASKS + body


def _json(schema: Any, spec: GrammarSpec) -> str:
    """A Lark expression for the documents of a schema in ``spec``."""
    schema = {} if schema is True else schema
    options = _JSON_OPTIONS if spec.any_whitespace else _COMPACT_JSON_OPTIONS
    return "%json " + json.dumps(schema | {"x-guidance": options})


def _regex(pattern: str) -> str:
    return f"/{llguidance.regex_to_lark(pattern, '')}/" if pattern else '""'  # "//" is a comment


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _from_ebnf(source: str) -> str:
    try:
        return str(any_to_lark(source))
    except RecursionError:
        raise GrammarTooLarge("$", "nested too deeply") from None
    except Exception as error:  # the converter raises bare Exceptions of several kinds
        raise InvalidGrammar("$", str(error)) from None


class _LarkWriter:
    """Writes structural tags as a Lark grammar.

    Regular parts become one terminal: the lexer takes the longest match of each terminal, so free
    text as a terminal of its own would extend over the end of its tag.
    """

    def __init__(self, spec: GrammarSpec) -> None:
        self._spec = spec
        self._lines: list[str] = []

    def write(self, tree: Format) -> str:
        start = self._inline(tree, ())
        return "\n".join([f"start: {start}", *self._lines])

    def _define(self, prefix: str, body: str) -> str:
        name = f"{prefix}{len(self._lines)}"
        self._lines.append(f"{name}: {body}")
        return name

    def _inline(self, tree: Format, ends: tuple[str, ...]) -> str:
        """An expression for a rule; ``ends`` are the strings that would end free text."""
        regular = self._regular(tree, ends)
        if regular is not None:
            return self._define("T", regular)
        match tree:
            case Token(token_id):
                return f"<[{token_id}]>"
            case JsonSchema(schema):
                return self._define("r", _json(schema, self._spec))
            case InOrder(elements):
                return self._define("r", " ".join(self._inline(e, ends) for e in elements))
            case Or(elements):
                return self._define("r", " | ".join(self._inline(e, ends) for e in elements))
            case Tag(begin):
                return self._define("r", f"{_edge(begin)} {self._rest(tree)}")
            case TriggeredTags():
                return self._triggered(tree)
            case TagsWithSeparator():
                tags = self._define("r", " | ".join(self._inline(tag, ()) for tag in tree.tags))
                return _repeated(tags, f"{_literal(tree.separator)} {tags}", tree)
            case _:
                raise AssertionError(tree)

    def _regular(self, tree: Format, ends: tuple[str, ...]) -> str | None:
        """An expression for a terminal, if the language is regular."""
        match tree:
            case ConstString(value):
                return _literal(value)
            case Regex(pattern):
                return _regex(pattern)
            case AnyText(excludes):
                return _text_without((*ends, *excludes))
            case InOrder(elements):
                parts = [self._regular(element, ends) for element in elements]
                return None if None in parts else " ".join(f"({part})" for part in parts)
            case Or(elements):
                parts = [self._regular(element, ends) for element in elements]
                return None if None in parts else " | ".join(f"({part})" for part in parts)
            case Tag(str(begin)):
                rest = self._regular_rest(tree)
                return None if rest is None else f"{_literal(begin)} {rest}"
        return None

    def _rest(self, tag: Tag) -> str:
        """What follows the beginning of a tag."""
        regular = self._regular_rest(tag)
        if regular is not None:
            return self._define("T", regular)
        return f"{self._inline(tag.content, tag.end_texts)} {_any_of(tag.ends)}"

    def _regular_rest(self, tag: Tag) -> str | None:
        if len(tag.end_texts) < len(tag.ends):
            return None
        inner = self._regular(tag.content, tag.end_texts)
        return None if inner is None else f"({inner}) {_any_of(tag.ends)}"

    def _triggered(self, tree: TriggeredTags) -> str:
        barred = [trigger for trigger in tree.triggers if isinstance(trigger, str)]
        text = self._define("T", _text_without((*barred, *tree.excludes)))
        bare, led = [], []
        for tag in tree.tags:
            rest = self._rest(tag)
            bare.append(f"{_edge(tag.begin)} {rest}")
            before = f"{text} {_edge(tag.begin)}"
            # The text before it is one terminal with what begins it, as the longest match wants.
            led.append(f"{self._define('T', before) if barred else before} {rest}")
        first = self._define("r", " | ".join(bare if tree.at_least_one else led))
        tail = self._define("r", text)
        if tree.stop_after_first:
            return first if tree.at_least_one else self._define("r", f"{first} | {tail}")
        if not tree.at_least_one:
            return self._define("r", f"{first}* {tail}")
        more = self._define("r", " | ".join(led))
        return self._define("r", f"{first} {more}* {tail}")


def _repeated(first: str, more: str, tree: TagsWithSeparator) -> str:
    body = first if tree.stop_after_first else f"{first} ({more})*"
    return f"({body})" if tree.at_least_one else f"({body})?"


def _edge(edge: str | Token) -> str:
    return _literal(edge) if isinstance(edge, str) else f"<[{edge.id}]>"


def _any_of(edges: tuple[str | Token, ...]) -> str:
    return f"({' | '.join(map(_edge, edges))})"


def _text_without(texts: tuple[str, ...]) -> str:
    anything = "/(?s:.*)/"
    if not texts:
        return anything
    barred = (f"~/(?s:.*){llguidance.regex_to_lark(re.escape(t), '')}(?s:.*)/" for t in texts)
    return " & ".join([anything, *barred])


_TOO_MUCH = {
    r"row has \d+ items|Too many items": (
        "anyOf, oneOf, properties or rules: too many alternatives or options could come next"
    ),
    "too many expressions": (
        "pattern, format, multipleOf or rules: too much could match next at once"
    ),
}
"""What is at fault, in a client's words."""


def _refusal(message: str) -> InvalidGrammar:
    if "too deeply nested" in message:
        return GrammarTooLarge("$", "nested too deeply")
    unsatisfiable = re.search(r"Unsatisfiable schema: (.*)", message)
    if unsatisfiable:
        return Unsatisfiable("$", f"nothing can satisfy the schema: {unsatisfiable[1]}")
    if "regex is empty" in message:
        text = "pattern: patterns and formats for one string are too costly to combine"
        return GrammarTooLarge("$", text)
    if "not disjoint" in message:
        text = "patternProperties: several patterns of names that apply to one object overlap"
        return InvalidGrammar("$", text)
    too_large = re.search(r"fuel|too (large|many|big|complex)|limit|exceeded|^panic", message)
    return (GrammarTooLarge if too_large else InvalidGrammar)("$", _plain(message)[:300])


def _plain(message: str) -> str:
    """A message without the position and the excerpt of the Lark text, which the client does not
    know."""
    for technical, text in _TOO_MUCH.items():
        if re.search(technical, message):
            return text
    message = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", message)
    # Their names are ours as well, and a text could not tell them from what they look like.
    message = re.sub(r"; following special tokens are available: .*", _NO_TOKENS, message)
    message = re.sub(r"\n\s*\d* \|.*|<non-verbose/>|\n\s*\^+\s*(?=\n|$)", "", message)
    return re.sub(
        r"\(in regex\): regex parse error:\s.*\nerror: ", "", message, flags=re.DOTALL
    ).strip()
