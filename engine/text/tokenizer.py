"""Text to token ids and back, from a model folder's ``tokenizer.json``. Never imports torch.

Encoding is the ``tokenizers`` library's. Decoding goes through a table with the exact bytes of
every id, so that a stream of ids becomes text in O(1) per token, and a grammar can be compiled
against the bytes that the model really emits.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import ModelLoadError

METASPACE = "▁"
_CLOSE = frozenset({".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"})
"""Tokens before which WordPiece's decoder puts no space, if it cleans up."""


class Tokenizer:
    """Encodes and decodes. Safe to share between threads."""

    def __init__(
        self, backend: tokenizers.Tokenizer, *, eos_token_ids: frozenset[int] = frozenset()
    ) -> None:
        """Raises ``ModelLoadError`` when the tokenizer's decoder is of an unsupported kind."""
        # A file may carry the truncation and padding of the training run: never for serving.
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._decoding = _Decoding.parse(json.loads(backend.to_str())["decoder"])
        self._token_bytes = _byte_table(backend, self._decoding)
        self._texts: dict[int, str] = {}
        """Cached texts of tokens that start and end on a character boundary."""
        self.vocab_size = len(self._token_bytes)
        """One more than the highest id. A model's logits may be wider (padding)."""
        self.max_token_bytes = max(map(len, self._token_bytes), default=0)
        self.eos_token_ids = eos_token_ids
        self.special_ids = frozenset(i for i, token in added.items() if token.special)

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Reads ``tokenizer.json`` and whatever says which ids end a text (``ModelLoadError``)."""
        path = Path(model_dir) / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadError(
                f"{path} does not exist: save the tokenizer there with transformers' "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelLoadError(f"{path} cannot be read: {error}") from error
        return cls(backend, eos_token_ids=_eos_token_ids(Path(model_dir), backend))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``. A rendered chat already holds its BOS: encode it without."""
        # Only the batch calls let other threads run meanwhile: a long text takes most of a second.
        (token_ids,) = self.encode_batch([text], add_special_tokens=add_special_tokens)
        return token_ids

    def count(self, text: str, *, add_special_tokens: bool = True) -> int:
        """The length of ``encode``. A list of millions of ids would hold Python's lock for long."""
        texts = [text]
        (found,) = self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return len(found)

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """As ``encode``, for many texts, on all cores."""
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int | None]]:
        """Two texts in one prompt, as cross-encoders read them: the token ids of each pair, and the
        index of the second text's first token where the tokenizer tells the two apart."""
        encodings = self._backend.encode_batch_fast(list(pairs))
        return [
            (found.ids, found.type_ids.index(1) if 1 in found.type_ids else None)
            for found in encodings
        ]

    def cut(self, text: str, num_tokens: int) -> str:
        """The beginning of ``text`` that is its first ``num_tokens`` tokens, or all of it."""
        (found,) = self._backend.encode_batch([text], add_special_tokens=False)
        if len(found) <= num_tokens:
            return text
        _, end = found.offsets[num_tokens - 1]
        return text[:end]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``token_ids``; bytes that are no UTF-8 become U+FFFD, unknown ids nothing."""
        decoder = self.text_decoder(skip_special_tokens=skip_special_tokens)
        return decoder.push(token_ids) + decoder.finish()

    def bad_words_token_ids(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each of ``words``: at the start of a text and, where they are others, after
        a space."""
        sequences: list[tuple[int, ...]] = []
        for word in words:
            plain = tuple(self.encode(word.lstrip(), add_special_tokens=False))
            spaced = tuple(self.encode(f" {word.lstrip()}", add_special_tokens=False))
            sequences.append(plain)
            if spaced[-len(plain) :] != plain:
                sequences.append(spaced)
        return tuple(filter(None, sequences))

    def text_decoder(self, *, skip_special_tokens: bool = True) -> TextDecoder:
        return TextDecoder(self, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, special ones included; none for an id that has no token."""
        return self._token_bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def vocabulary(self) -> list[bytes]:
        """The exact bytes of each id; ``b""`` for special tokens and for holes in the ids."""
        special = self.special_ids
        return [b"" if i in special else data for i, data in enumerate(self._token_bytes)]


class TextDecoder:
    """Ids to text, incrementally: any split of the ids gives the same text when joined."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._table = tokenizer._token_bytes
        self._texts = tokenizer._texts
        self._skipped: frozenset[int] = (
            tokenizer.special_ids if skip_special_tokens else frozenset()
        )
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        decoding = tokenizer._decoding
        self._spaces_to_strip = decoding.strip_leading
        self._backend = tokenizer._backend if decoding.first_drops_metaspace else None
        self._is_settled = self._backend is None and self._spaces_to_strip == 0
        """No partial character is pending: the usual case."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that became certain; an unfinished UTF-8 sequence is held back."""
        was_settled = self._is_settled
        if was_settled and len(token_ids) == 1 and token_ids[0] not in self._skipped:
            text = self._texts.get(token_ids[0])
            if text is not None:
                return text
        table, skipped = self._table, self._skipped
        known = [i for i in token_ids if 0 <= i < len(table) and i not in skipped]
        data = b"".join([table[i] for i in known])
        if self._backend is not None and known:
            data = self._without_metaspace(known, data)
        text = self._strip(self._utf8.decode(data))
        is_whole = not self._utf8.getstate()[0]
        self._is_settled = is_whole and self._backend is None and self._spaces_to_strip == 0
        if was_settled and self._is_settled and len(known) == 1:
            self._texts[known[0]] = text
        return text

    @property
    def is_settled(self) -> bool:
        """Whether the text of the next token does not depend on those before it."""
        return self._is_settled

    def finish(self) -> str:
        """The remaining text: U+FFFD where the last token left a UTF-8 sequence unfinished."""
        return self._strip(self._utf8.decode(b"", final=True))

    def _without_metaspace(self, known: list[int], data: bytes) -> bytes:
        """The Metaspace decoder drops every metaspace of the first token of a text."""
        assert self._backend is not None
        first = known[0]
        token = self._backend.id_to_token(first) or ""
        self._backend = None
        if METASPACE not in token:
            return data
        rest = data[len(self._table[first]) :]
        return token.replace(METASPACE, "").encode() + rest

    def _strip(self, text: str) -> str:
        while self._spaces_to_strip and text:
            if text[0] != " ":
                self._spaces_to_strip = 0
                break
            text = text[1:]
            self._spaces_to_strip -= 1
        return text


@dataclass(frozen=True, slots=True)
class _Decoding:
    """What a ``decoder`` section of a tokenizer.json does to tokens."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    strip_leading: int = 0
    first_drops_metaspace: bool = False
    word_pieces: str | None = None
    """The prefix of tokens that continue a word (BERT); a space comes before the others."""
    cleanup: bool = False
    """No space comes before punctuation, as WordPiece's decoder wants it."""

    @classmethod
    def parse(cls, section: dict[str, Any] | None) -> _Decoding:
        steps = _flatten(section)
        if [step["type"] for step in steps] == ["ByteLevel"]:
            return cls(byte_level=True)
        match steps:
            case [{"type": "WordPiece", "prefix": str(prefix), "cleanup": bool(cleanup)}]:
                return cls(strip_leading=1, word_pieces=prefix, cleanup=cleanup)
        byte_fallback, fused, strip, drops = False, False, 0, False
        replacements: list[tuple[str, str]] = []
        for step in steps:
            match step:
                case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                    replacements.append((old, new))
                case {"type": "ByteFallback"}:
                    byte_fallback = True
                case {"type": "Fuse"}:
                    fused = True
                case {"type": "Strip", "content": " ", "start": int(start), "stop": 0} if fused:
                    strip = start
                case {"type": "Metaspace", "replacement": str(char)} if not fused:
                    replacements.append((char, " "))
                    drops = char == METASPACE and step.get("prepend_scheme", "always") != "never"
                case _:
                    raise _unsupported(section)
        if not replacements:
            raise _unsupported(section)
        return cls(False, byte_fallback, tuple(replacements), strip, drops)

    def token_bytes(self, token: str) -> bytes:
        if self.byte_level:
            alphabet = _byte_level_alphabet()
            try:
                return bytes([alphabet[char] for char in token])
            except KeyError:  # an added token outside the alphabet stands for itself
                return token.encode()
        if self.word_pieces is not None:
            return self._word_piece(token, self.word_pieces).encode()
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.byte_fallback and len(token) == 6 and token[:3] == "<0x" and token[5] == ">":
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass
        return token.encode()

    def _word_piece(self, token: str, prefix: str) -> str:
        if token.startswith(prefix):
            return token.removeprefix(prefix)
        return token if self.cleanup and token in _CLOSE else f" {token}"


def _flatten(section: dict[str, Any] | None) -> list[dict[str, Any]]:
    if section is None:
        return []
    if section["type"] == "Sequence":
        return [step for part in section["decoders"] for step in _flatten(part)]
    return [section]


def _unsupported(section: dict[str, Any] | None) -> ModelLoadError:
    return ModelLoadError(
        f"the tokenizer's decoder {json.dumps(section)} is not supported: byte-level BPE, "
        "WordPiece and SentencePiece (Replace or Metaspace, ByteFallback, Fuse, Strip) are"
    )


def _byte_table(backend: tokenizers.Tokenizer, decoding: _Decoding) -> list[bytes]:
    tokens: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(tokens.values(), default=-1) + 1)
    for token, token_id in tokens.items():
        table[token_id] = decoding.token_bytes(token)
    return table


@cache
def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, inverted (Radford et al. 2019, ``encoder.py``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + n): byte for n, byte in enumerate(others)}


def _eos_token_ids(model_dir: Path, backend: tokenizers.Tokenizer) -> frozenset[int]:
    """generation_config.json knows best (several ids), then config.json, then the tokenizer's."""
    for name in ("generation_config.json", "config.json"):
        ids = read_json(model_dir / name).get("eos_token_id")
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    token = token_text(read_json(model_dir / "tokenizer_config.json").get("eos_token"))
    token_id: int | None = None if token is None else backend.token_to_id(token)
    return frozenset() if token_id is None else frozenset([token_id])


def token_text(token: object) -> str | None:
    """A special token of tokenizer_config.json is a string or a serialized ``AddedToken``."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``, ``{}`` when there is no such file (``ModelLoadError``)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return value
