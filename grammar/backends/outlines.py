"""outlines-core: one deterministic automaton over the whole vocabulary, built ahead of time.

Masks are look-ups and cost almost nothing. Compiling takes seconds where others take milliseconds,
and grammars must be regular (references are unrolled three levels deep).

It takes schemas only. Where the output may end, version 0.2.14 allows only tokens after which it
may end as well, so ``a(bc)?`` would be ``a`` only. In JSON this concerns only a lone number.
"""

from __future__ import annotations

from outlines_core import Guide, Index, json_schema
from outlines_core import Vocabulary as OutlinesVocabulary

from grammar.backends.base import MAX_WHITESPACE
from grammar.errors import InvalidGrammar
from grammar.spec import GrammarSpec
from grammar.vocabulary import Mask, Vocabulary

_WHITESPACE = rf"[ \n\r\t]{{0,{MAX_WHITESPACE}}}"
_MAX_TOKENS = 1 << 20


class OutlinesBackend:
    name = "outlines"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._eos = min(vocabulary.eos_token_ids)
        ids: dict[bytes, list[int]] = {}
        for token_id, token in enumerate(vocabulary.tokens):
            if token and token_id not in vocabulary.special_ids:
                ids.setdefault(token, []).append(token_id)
        self._vocabulary = OutlinesVocabulary(self._eos, ids)

    def compile(self, spec: GrammarSpec) -> OutlinesGrammar:
        assert spec.kind == "json_schema"
        try:
            expression = json_schema.build_regex_from_schema(spec.source, _WHITESPACE)
            return OutlinesGrammar(Index(expression, self._vocabulary), self._eos)
        except ValueError as error:
            raise InvalidGrammar("$", str(error)) from None

    def load(self, spec: GrammarSpec, data: bytes) -> OutlinesGrammar:
        return OutlinesGrammar(Index.from_binary(data), self._eos)


class OutlinesGrammar:
    def __init__(self, index: Index, eos: int) -> None:
        self._index = index
        self._eos = eos
        self._data = index.__reduce__()[1][0]

    @property
    def memory_bytes(self) -> int:
        return 8 * len(self._data)  # The data are read into hash tables.

    def matcher(self) -> OutlinesMatcher:
        return OutlinesMatcher(Guide(self._index, _MAX_TOKENS))

    def dump(self) -> bytes:
        return bytes(self._data)


class OutlinesMatcher:
    def __init__(self, guide: Guide) -> None:
        self._guide = guide

    def accept(self, token_id: int) -> bool:
        try:
            self._guide.advance(token_id, False)
        except ValueError:
            return False
        return True

    def rollback(self, num_tokens: int) -> None:
        self._guide.rollback_state(num_tokens)

    def fill(self, row: Mask) -> None:
        self._guide.write_mask_into(row.ctypes.data, row.size, row.itemsize)

    def is_accepting(self) -> bool:
        return bool(self._guide.is_finished())

    def forced_bytes(self) -> bytes:
        return b""  # It knows the next tokens, but not bytes.
