"""llguidance: derivative-based lexer under an Earley parser, lazily built, no start-up cost.

It reports by state, not by exception: an object can fail at construction and at every mask.
"""

from __future__ import annotations

import json
import re
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from grammar.backends.base import MAX_WHITESPACE
from grammar.errors import GrammarTooLarge, InvalidGrammar, MatcherFailed, UnsupportedKeyword
from grammar.spec import GrammarSpec, Kind
from grammar.vocabulary import Mask, Vocabulary

# Where the text is forced, llguidance would allow only its canonical tokens; drafts do that better.
_EXACT_MASKS = '%llguidance {"no_forcing": true}\n'
_JSON_OPTIONS = {
    "whitespace_flexible": True,
    "whitespace_pattern": rf"[ \n\r\t]{{1,{MAX_WHITESPACE}}}",
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
    # One spelling per string, so that no key can come again as another spelling of itself.
    "json_allowed_escapes": 'nrtbf\\"',
}
_LIMITS = llguidance.LLParserLimits(verbose_errors=False)
_ESTIMATED_BYTES_PER_SOURCE_BYTE = 200


class LLGuidanceBackend:
    name = "llguidance"
    kinds: frozenset[Kind] = frozenset({"json_schema", "json_object", "regex", "choice", "ebnf"})

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(vocabulary)),
            eos_token=sorted(vocabulary.eos_token_ids),
        )
        assert self._tokenizer.vocab_size == vocabulary.size

    def compile(self, spec: GrammarSpec) -> LLGuidanceGrammar:
        matcher = llguidance.LLMatcher(
            self._tokenizer, _translate(spec), log_level=0, limits=_LIMITS
        )
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        return LLGuidanceGrammar(matcher, len(spec.source) * _ESTIMATED_BYTES_PER_SOURCE_BYTE)

    def load(self, spec: GrammarSpec, data: bytes) -> LLGuidanceGrammar:
        return self.compile(spec)


class LLGuidanceGrammar:
    def __init__(self, prototype: llguidance.LLMatcher, memory_bytes: int) -> None:
        self._prototype = prototype
        self._memory_bytes = memory_bytes

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    def dump(self) -> bytes:
        return b""  # compiling again is as quick

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._prototype.deep_copy())


class LLGuidanceMatcher:
    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.try_consume_tokens([token_id]) == 1)

    def rollback(self, num_tokens: int) -> None:
        if not self._matcher.rollback(num_tokens):
            raise MatcherFailed(self._matcher.get_error())

    def fill(self, row: Mask) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._matcher.is_error():
            raise MatcherFailed(self._matcher.get_error())

    def is_accepting(self) -> bool:
        return bool(self._matcher.is_accepting())

    def forced_bytes(self) -> bytes:
        return bytes(self._matcher.compute_ff_bytes())


class _Tokens:
    """The shape in which llguidance's ``TokenizerWrapper`` takes a vocabulary."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.eos_token_id = min(vocabulary.eos_token_ids)
        self._tokenize = vocabulary.tokenize

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenize(text)


def _translate(spec: GrammarSpec) -> str:
    """The source as a Lark grammar."""
    match spec.kind:
        case "json_schema":
            body = _from_schema(spec.document())
        case "json_object":
            body = _from_schema({"type": "object"})
        case "regex":
            body = f"start: /{llguidance.regex_to_lark(spec.source, '')}/"
        case "choice":
            choices = (json.dumps(choice, ensure_ascii=False) for choice in spec.document())
            body = "start: " + " | ".join(choices)
        case "ebnf":
            body = _from_ebnf(spec.source)
        case "structural_tag":
            raise InvalidGrammar("$", "structural tags are not supported")
    return _EXACT_MASKS + body


def _from_schema(schema: Any) -> str:
    schema = {} if schema is True else schema
    return "start: %json " + json.dumps(schema | {"x-guidance": _JSON_OPTIONS})


def _from_ebnf(source: str) -> str:
    try:
        return str(any_to_lark(source))
    except RecursionError:
        raise GrammarTooLarge("$", "nested too deeply") from None
    except Exception as error:  # the converter raises bare Exceptions of several kinds
        raise InvalidGrammar("$", str(error)) from None


def _refusal(message: str) -> InvalidGrammar | UnsupportedKeyword:
    unimplemented = re.search(r'Unimplemented keys: \["([^"]+)"', message)
    if unimplemented:
        return UnsupportedKeyword(unimplemented[1], "$")
    return InvalidGrammar("$", message.strip())
