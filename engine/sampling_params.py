"""How one request samples and what its output must match: vLLM's names, checked on construction."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from functools import cache
from types import UnionType
from typing import get_args, get_origin

import msgspec

MAX_N = 16384
"""Completions of one prompt at most, as in vLLM: each is a request of its own."""


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the output must match. Exactly one of the first six is set; names as in vLLM."""

    json: str | None = None
    """A JSON schema (draft 2020-12) as JSON text."""
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    """An EBNF or Lark grammar."""
    structural_tag: str | None = None
    """Free text with constrained regions, as JSON text: see ``grammar.structural_tag``."""
    strict: bool = True
    """Refuse a schema of which a keyword cannot be enforced; else that keyword is left out."""
    disable_any_whitespace: bool = False
    """Documents have no blanks but those inside of strings. For ``json`` and ``json_object``."""
    reasoning_end_token_ids: tuple[int, ...] = ()
    """Anything goes until the output has said these; where empty, nothing but the grammar."""

    def __post_init__(self) -> None:
        # As in vLLM, callers may write documents as objects, and lists for the tuples.
        for name in ("json", "structural_tag"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                text = msgspec.json.encode(value).decode()
                msgspec.structs.force_setattr(self, name, text)
        msgspec.structs.force_setattr(self, "choice", _tuple(self.choice))
        end = _tuple(self.reasoning_end_token_ids)
        msgspec.structs.force_setattr(self, "reasoning_end_token_ids", end)
        _check_types(self)


class RequestOutputKind(enum.Enum):
    """What a reader of a stream gets with each result."""

    CUMULATIVE = 0  #: All that was generated so far.
    DELTA = 1  #: What is new since the result before.
    FINAL_ONLY = 2  #: Everything, in one result at the end.


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one request samples. Names, meanings and defaults as in vLLM, checked on construction."""

    n: int = 1
    """Completions of the prompt, each drawn by itself. To the engine each is a request (see
    ``branch``)."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    top_n_sigma: float = 0.0
    """Keep the tokens whose logits are at most so many standard deviations below the best one, at
    any temperature (arXiv 2411.07641); 0 keeps all."""
    seed: int | None = None
    presence_penalty: float = 0.0
    """Taken off the logit of every token generated so far."""
    frequency_penalty: float = 0.0
    """Taken off the logit of a token once for each time it was generated so far."""
    repetition_penalty: float = 1.0
    """Divides the positive logits, and multiplies the negative ones, of all tokens of prompt and
    output (arXiv 1909.05858)."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these ids, before the penalties."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Nothing else is generated; None allows all."""
    bad_words: tuple[str, ...] = ()
    """Never generated. The engine knows them as ``bad_words_token_ids`` alone."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Token sequences that are never completed, see ``Tokenizer.bad_words_token_ids``."""
    max_tokens: int | None = 16
    """New tokens at most; None means up to the model's length."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    """Report the log-probability of each generated token, and so many of the likeliest at its
    place; -1 for the whole vocabulary. Taken from the model's raw logits."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens. The whole prompt is computed for it, cached or not."""
    structured_outputs: StructuredOutputs | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """For streams of the offline API; the engine always sends what is new."""

    def __post_init__(self) -> None:
        self._normalize()
        _check_types(self)
        self._check("n", 1 <= self.n <= MAX_N, f"must be in [1, {MAX_N}]")
        self._check_distribution()
        self._check_penalties()
        self._check_token_ids()
        self._check_end()
        for name in ("logprobs", "prompt_logprobs"):
            number = getattr(self, name)
            rule = "must be at least 0, or -1 for the whole vocabulary"
            self._check(name, number is None or number >= -1, rule)

    def _normalize(self) -> None:
        """As in vLLM, callers may write stop="x", and other sequences or None for the tuples."""
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            self._set(name, (value,) if isinstance(value, str) else _tuple(value or ()))
        self._set("stop_token_ids", _tuple(self.stop_token_ids or ()))
        self._set("allowed_token_ids", _tuple(self.allowed_token_ids))
        words = _tuple(self.bad_words_token_ids or ())
        self._set(
            "bad_words_token_ids", tuple(map(_tuple, words)) if isinstance(words, tuple) else words
        )
        if not self.logit_bias:
            self._set("logit_bias", None)

    def _set(self, field: str, value: object) -> None:
        msgspec.structs.force_setattr(self, field, value)

    def _check(self, field: str, ok: bool, rule: str) -> None:
        if not ok:
            raise ValueError(f"{field} {rule}, got {getattr(self, field)!r}")

    def _check_distribution(self) -> None:
        is_temperature = 0 <= self.temperature < math.inf
        self._check("temperature", is_temperature, "must be a number of at least 0")
        self._check("top_p", 0 < self.top_p <= 1, "must be in (0, 1]")
        self._check("top_k", self.top_k >= -1, "must be -1, 0 or positive")
        self._check("min_p", 0 <= self.min_p <= 1, "must be in [0, 1]")
        is_sigma = 0 <= self.top_n_sigma < math.inf
        self._check("top_n_sigma", is_sigma, "must be a number of at least 0; 0 keeps all")
        # Philox takes a 64-bit seed.
        is_seed = self.seed is None or 0 <= self.seed < 2**64
        self._check("seed", is_seed, "must be in [0, 2**64)")

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            self._check(name, -2 <= getattr(self, name) <= 2, "must be in [-2, 2]")
        self._check(
            "repetition_penalty",
            0 < self.repetition_penalty < math.inf,
            "must be a number above 0; 1 changes nothing",
        )

    def _check_token_ids(self) -> None:
        for token_id, bias in (self.logit_bias or {}).items():
            if token_id < 0:
                raise ValueError(f"logit_bias must map token ids, got {token_id!r}")
            if not -100 <= bias <= 100:
                raise ValueError(f"logit_bias must have values in [-100, 100], got {bias!r}")
        self._check(
            "allowed_token_ids",
            self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
            "must name at least one token, or be None to allow all",
        )
        has_words = all(word.strip() for word in self.bad_words)
        self._check("bad_words", has_words, "must not hold an empty string")
        has_sequences = all(self.bad_words_token_ids)
        self._check("bad_words_token_ids", has_sequences, "must not hold an empty sequence")

    def _check_end(self) -> None:
        limit = self.max_tokens
        self._check("max_tokens", limit is None or limit >= 1, "must be at least 1")
        self._check("min_tokens", self.min_tokens >= 0, "must be at least 0")
        is_reachable = limit is None or self.min_tokens <= limit
        self._check("min_tokens", is_reachable, "must not exceed max_tokens")
        self._check("stop", all(self.stop), "must not hold an empty string")

    def branch(self, index: int) -> SamplingParams:
        """For the completion at ``index`` of ``n``: a seed of its own, and what concerns the prompt
        only with the first."""
        if index == 0:
            return self if self.n == 1 else msgspec.structs.replace(self, n=1)
        seed = None if self.seed is None else (self.seed + index) % 2**64
        return msgspec.structs.replace(self, n=1, seed=seed, prompt_logprobs=None)


def _tuple(value: object) -> object:
    """Whatever holds items as a tuple; the rest, and text, as it is."""
    if value is None or type(value) is tuple:  # nearly always
        return value
    is_text = isinstance(value, str | bytes)
    return tuple(value) if isinstance(value, Iterable) and not is_text else value


# To evaluate the annotations takes longer than all else here, and there is one of these for every
# completion.
@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[msgspec.structs.FieldInfo, tuple[type, ...]]]:
    """The fields, each with the classes whose own instances need no closer look."""
    found = []
    for field in msgspec.structs.fields(kind):
        choices = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
        # Of a tuple or a dictionary the items are to be checked, too.
        found.append((field, tuple(each for each in choices if get_origin(each) is None)))
    return found


def _check_types(struct: msgspec.Struct) -> None:
    """What crosses a socket was checked there; what a caller writes only here."""
    for field, plain_types in _fields(type(struct)):
        value = getattr(struct, field.name)
        if value is field.default or type(value) in plain_types:
            continue
        # Numbers of NumPy and torch, but no lists of them.
        plain = value.item() if hasattr(value, "item") else value
        try:
            checked = msgspec.convert(plain, field.type)
        except msgspec.ValidationError as error:
            message = f"{field.name} has the wrong type: {error}, got {value!r}"
            raise ValueError(message) from None
        msgspec.structs.force_setattr(struct, field.name, checked)
