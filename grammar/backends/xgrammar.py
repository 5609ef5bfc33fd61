"""xgrammar: a pushdown automaton with masks precomputed for every state.

The library imports torch and transformers. So this module may only be imported where a grammar
needs it: in the engine's process, which has torch anyway, and in compile workers.
"""

from __future__ import annotations

import json
import re

import xgrammar

from grammar import structural_tag
from grammar.backends.base import MAX_WHITESPACE
from grammar.errors import InvalidGrammar
from grammar.spec import GrammarSpec
from grammar.vocabulary import Mask, Vocabulary


class XGrammarBackend:
    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        # xgrammar takes a token without bytes for a special one, which is never allowed.
        specials = vocabulary.special_ids
        texts = [b"" if i in specials else token for i, token in enumerate(vocabulary.tokens)]
        self._info = xgrammar.TokenizerInfo(
            texts, vocab_size=vocabulary.size, stop_token_ids=sorted(vocabulary.eos_token_ids)
        )
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)

    def compile(self, spec: GrammarSpec) -> XGrammarGrammar:
        try:
            return XGrammarGrammar(self._compile(spec))
        except RuntimeError as error:
            raise InvalidGrammar("$", _message(error)) from None

    def load(self, spec: GrammarSpec, data: bytes) -> XGrammarGrammar:
        return self.compile(spec)

    def _compile(self, spec: GrammarSpec) -> xgrammar.CompiledGrammar:
        match spec.kind:
            case "json_schema":
                return self._compile_schema(spec.source)
            case "json_object":
                return self._compile_schema('{"type": "object"}')
            case "regex":
                return self._compiler.compile_regex(spec.source)
            case "choice":
                options = " | ".join(json.dumps(choice) for choice in spec.document())
                return self._compiler.compile_grammar(f"root ::= {options}")
            case "ebnf" if re.search(r"^\s*[\w-]+\s*::=", spec.source, re.MULTILINE):
                return self._compiler.compile_grammar(spec.source)
            case "ebnf":
                return self._compiler.compile_lark(spec.source)
            case "structural_tag":
                document = structural_tag.to_json(structural_tag.parse(spec.document()))
                return self._compiler.compile_structural_tag(document)

    def _compile_schema(self, source: str) -> xgrammar.CompiledGrammar:
        return self._compiler.compile_json_schema(
            source, any_whitespace=True, strict_mode=False, max_whitespace_cnt=MAX_WHITESPACE
        )


class XGrammarGrammar:
    def __init__(self, grammar: xgrammar.CompiledGrammar) -> None:
        self._grammar = grammar

    @property
    def memory_bytes(self) -> int:
        return int(self._grammar.memory_size_bytes)

    def matcher(self) -> XGrammarMatcher:
        return XGrammarMatcher(xgrammar.GrammarMatcher(self._grammar))

    def dump(self) -> bytes:
        return b""  # To load its own form takes eight times as long as compiling the source.


class XGrammarMatcher:
    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self._matcher = matcher

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def fill(self, row: Mask) -> None:
        if not self._matcher.fill_next_token_bitmask(row[None], 0):
            row.fill(-1)

    def is_accepting(self) -> bool:
        return bool(self._matcher.is_completed())

    def forced_bytes(self) -> bytes:
        try:
            return self._matcher.find_jump_forward_string().encode()
        except UnicodeDecodeError:  # In the middle of a character it returns the rest of it.
            return b""


def _message(error: RuntimeError) -> str:
    """The first line of the C++ message, without the time and the source file."""
    line = str(error).strip().partition("\n")[0]
    return re.sub(r"^\[[\d:]+\] \S+: ", "", line)
