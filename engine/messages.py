"""The only contract between a gateway and the engine process: typed msgpack records.

Every record crosses ZeroMQ as msgpack (``encode``/``decode_*`` below). Structs that travel once per
token are array-encoded. The engine never learns who a tenant is: it sees an opaque ``cache_salt``,
an opaque ``fair_key`` and two numbers, ``weight`` and ``priority``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from functools import cache
from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]

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
        _require(1 <= self.n <= MAX_N, "n", f"must be in [1, {MAX_N}]", self.n)
        self._check_distribution()
        self._check_penalties()
        self._check_token_ids()
        self._check_logprobs()
        self._check_end()

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

    def _check_distribution(self) -> None:
        _require(
            0 <= self.temperature < math.inf,
            "temperature",
            "must be a number of at least 0",
            self.temperature,
        )
        _require(0 < self.top_p <= 1, "top_p", "must be in (0, 1]", self.top_p)
        _require(self.top_k >= -1, "top_k", "must be -1, 0 or positive", self.top_k)
        _require(0 <= self.min_p <= 1, "min_p", "must be in [0, 1]", self.min_p)
        # Philox takes a 64-bit seed.
        _require(
            self.seed is None or 0 <= self.seed < 2**64, "seed", "must be in [0, 2**64)", self.seed
        )

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2 <= value <= 2, name, "must be in [-2, 2]", value)
        _require(
            0 < self.repetition_penalty < math.inf,
            "repetition_penalty",
            "must be a number above 0; 1 changes nothing",
            self.repetition_penalty,
        )

    def _check_token_ids(self) -> None:
        for token_id, bias in (self.logit_bias or {}).items():
            _require(token_id >= 0, "logit_bias", "must map token ids", token_id)
            _require(-100 <= bias <= 100, "logit_bias", "must have values in [-100, 100]", bias)
        _require(
            self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
            "allowed_token_ids",
            "must name at least one token, or be None to allow all",
            self.allowed_token_ids,
        )
        _require(
            all(word.strip() for word in self.bad_words),
            "bad_words",
            "must not hold an empty string",
            self.bad_words,
        )
        _require(
            all(self.bad_words_token_ids),
            "bad_words_token_ids",
            "must not hold an empty sequence",
            self.bad_words_token_ids,
        )

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            number = getattr(self, name)
            _require(
                number is None or number >= -1,
                name,
                "must be at least 0, or -1 for the whole vocabulary",
                number,
            )

    def _check_end(self) -> None:
        _require(
            self.max_tokens is None or self.max_tokens >= 1,
            "max_tokens",
            "must be at least 1",
            self.max_tokens,
        )
        _require(self.min_tokens >= 0, "min_tokens", "must be at least 0", self.min_tokens)
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens",
            "must not exceed max_tokens",
            self.min_tokens,
        )
        _require(all(self.stop), "stop", "must not hold an empty string", self.stop)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def branch(self, index: int) -> SamplingParams:
        """For the completion at ``index`` of ``n``: a seed of its own, and what concerns the prompt
        only with the first."""
        if index == 0:
            return self if self.n == 1 else msgspec.structs.replace(self, n=1)
        seed = None if self.seed is None else (self.seed + index) % 2**64
        return msgspec.structs.replace(self, n=1, seed=seed, prompt_logprobs=None)


def _tuple(value: object) -> object:
    """Whatever holds items as a tuple; the rest, and text, as it is."""
    is_text = isinstance(value, str | bytes)
    return tuple(value) if isinstance(value, Iterable) and not is_text else value


# It evaluates every annotation anew, and there is one of these for every completion.
_fields = cache(msgspec.structs.fields)


def _check_types(struct: msgspec.Struct) -> None:
    """What crosses a socket was checked there; what a caller writes only here."""
    for field in _fields(type(struct)):
        value = getattr(struct, field.name)
        if value is field.default or type(value) is field.type:
            continue
        # Numbers of NumPy and torch, but no lists of them.
        plain = value.item() if hasattr(value, "item") else value
        try:
            checked = msgspec.convert(plain, field.type)
        except msgspec.ValidationError as error:
            message = f"{field.name} has the wrong type: {error}, got {value!r}"
            raise ValueError(message) from None
        msgspec.structs.force_setattr(struct, field.name, checked)


def _require(ok: bool, field: str, rule: str, got: object) -> None:
    if not ok:
        raise ValueError(f"{field} {rule}, got {got!r}")


class AdapterRef(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter: all the engine needs to load it, now or again after it was put away."""

    name: str
    """Unique, and never used again for another one. The gateway takes its row's id."""
    path: str
    """The folder of ``adapter_config.json`` and ``adapter_model.safetensors``."""
    digest: str = ""
    """Of the files, as ``AdapterAnswer`` told it; other files are refused then. Empty: any."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Client to engine: generate from ``prompt_token_ids``."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    cache_salt: str = ""
    """Partitions the prefix cache; derived by the gateway, never taken from a client as is."""
    num_public_tokens: int = 0
    """So many leading prompt tokens are no secret (a named public prefix that the tenant chose):
    their full blocks are shared across salts. Set by the gateway alone, as the salt is."""
    group: str = ""
    """Requests of one group share the blocks of what their prompts have in common, even where
    prefix caching is off: the completions of one prompt. Unique to them."""
    adapter: AdapterRef | None = None
    """Computes all its tokens, and is loaded first if it is not there; None: the model itself."""
    fair_key: str = ""
    """Whom the scheduler charges for this request's work."""
    weight: float = 1.0
    priority: int = 0
    """Lower goes first, as in vLLM."""
    num_granted_tokens: int | None = None
    """New tokens it may generate until ``GrantTokens`` allows more; None: as many as it wants."""
    max_cached_blocks: dict[str, int] = {}
    """Groups that the blocks it leaves in the prefix cache count for, and how many of those each
    may have while no request uses them. Names are opaque; the newest bound of a group holds."""


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    """Client to engine: forget these requests at once. Unknown ids are ignored."""

    request_ids: list[str]


class ParkRequest(msgspec.Struct, frozen=True, tag="park"):
    """Client to engine: set these aside, because nobody reads what they generate.

    A parked request holds neither a row nor blocks (its cached prefix stays as long as it can). One
    that waits for its first admission stays where it is. Unknown ids are ignored.
    """

    request_ids: list[str]


class UnparkRequest(msgspec.Struct, frozen=True, tag="unpark"):
    """Client to engine: go on with these, at the place in the queue that their arrival gives."""

    request_ids: list[str]


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Client to engine: read and check it now; answered with ``AdapterAnswer``.

    One that is loaded already is fine. One that does not fit leaves nothing behind.
    """

    call_id: int
    adapter: AdapterRef


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Client to engine: take no more requests for it; answered with ``AdapterAnswer`` at once.

    Its running requests end as if nothing had happened, then it is forgotten. Unknown names pass.
    """

    call_id: int
    name: str


class Grant(msgspec.Struct, array_like=True, frozen=True):
    """How many new tokens a request may have generated by now: never fewer than before."""

    request_id: str
    num_tokens: int
    is_last: bool = False
    """No more will come: the request ends there, with ``length``, unless it ends before."""


class GrantTokens(msgspec.Struct, frozen=True, tag="grant"):
    """Client to engine: go on with requests that had a ``num_granted_tokens``. Unknown ids are
    ignored. At the end of its grant a request keeps its row and its blocks, and waits.
    """

    grants: list[Grant]


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Client to engine: finish the step in flight, then exit with code 0."""


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """Client to engine: I am here; answered with ``Ready``. The owner need not say so."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Client to engine: answer with one fresh ``Stats`` between two steps.

    It is the liveness probe too: an engine that hangs in a step does not answer.
    """


ClientMessage = (
    GenerateRequest
    | AbortRequest
    | ParkRequest
    | UnparkRequest
    | LoadAdapter
    | UnloadAdapter
    | GrantTokens
    | Shutdown
    | Attach
    | Ping
)


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How likely the model found a token before any sampling parameter took effect."""

    token_id: int
    logprob: float
    """Natural logarithm of its probability at temperature 1."""
    rank: int
    """1 for the likeliest: one more than the tokens that were likelier."""
    top: list[tuple[int, float]] = []
    """(id, log-probability) of as many tokens as asked for, the likeliest first, of equals the
    lowest id first."""


class RequestOutput(msgspec.Struct, array_like=True, frozen=True):
    """What one step did for one request. ``finish_reason`` set means: the last one."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The stop token that ended it, when it was not the model's EOS."""
    num_cached_tokens: int = 0
    """Prompt tokens served from the prefix cache (known from the first output on)."""
    error: str | None = None
    """Set with finish_reason "error": what went wrong, fit for a client's eyes."""
    error_code: str | None = None
    """Set with ``error``: ``invalid_request`` (the mend is the client's), ``queue_full`` (later may
    work), ``adapter_unloaded``, ``adapter_unavailable`` (its files do not load any more) or
    ``internal``."""
    logprobs: list[TokenLogprobs] | None = None
    """One for each of ``new_token_ids``; None unless asked for."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """With the first token, if asked for: one for each prompt token but the first, which nothing
    predicts."""
    num_draft_tokens: int = 0
    """Drafted tokens checked so far (speculative decoding)."""
    num_accepted_tokens: int = 0
    """Of these, the right ones, which are part of the output."""
    unenforced: list[tuple[str, str]] | None = None
    """Where ``structured_outputs`` is not strict and nobody enforces all of its schema: which
    keywords are left out, and where they stand."""


class StepOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    """Engine to client: one message a step for all requests that moved."""

    outputs: list[RequestOutput]


class AdapterAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="adapter"):
    """Engine to client: what became of ``LoadAdapter`` or ``UnloadAdapter``."""

    call_id: int
    error: str | None = None
    """What does not fit, for whoever asked to load it."""
    rank: int = 0
    digest: str = ""
    base_model: str | None = None
    """The model it was made for, as its config names it."""


class TenantStats(msgspec.Struct, array_like=True, frozen=True):
    """Gauges and running totals of one tenant. ``others`` sums up those not seen for long."""

    fair_key: str
    num_running: int = 0
    num_queued: int = 0
    """Waiting for their first admission."""
    computed_tokens: int = 0
    """Prompt tokens computed (once; what a preemption repeats is nobody's)."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    generation_tokens: int = 0
    preemptions_caused: int = 0
    preemptions_suffered: int = 0
    queued_tokens: int = 0
    """Prompt tokens of those waiting for their first admission."""
    num_admitted: int = 0
    """First admissions, and the time all those waited for it."""
    queue_time_sum_s: float = 0.0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = []
    """As ``spec_decode_num_accepted_tokens_per_pos``; likewise the three before."""


QUEUE_TIME_BUCKETS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
"""Upper bounds; vLLM's, and some below."""


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """Engine to client: gauges and running totals since the engine started."""

    num_running: int = 0
    num_waiting: int = 0
    num_parked: int = 0
    """Set aside because their readers stall, or waiting for a grant."""
    num_swapped: int = 0
    """Of those waiting: preempted, with what they had computed in host memory."""
    num_queued_reqs: int = 0
    """Requests that wait for their first admission."""
    num_queued_tokens: int = 0
    """Their prompt tokens."""
    num_total_blocks: int = 0
    num_free_blocks: int = 0
    """Blocks nobody references, those whose content is still cached included."""
    num_cached_blocks: int = 0
    """Blocks whose content can be found, referenced or not."""
    num_total_swap_blocks: int = 0
    num_free_swap_blocks: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    """Fewer than went out where requests end outside, or are found in the prefix cache."""
    num_steps: int = 0
    num_preemptions: int = 0
    scheduled_tokens: int = 0
    """Tokens computed, prompt and generated."""
    recomputed_tokens: int = 0
    """Of these, what a preemption or parking had thrown away."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_loaded_adapters: int = 0
    """In host memory."""
    num_adapter_reads: int = 0
    """Times that an adapter's files were read."""
    num_adapter_swaps: int = 0
    """Times that an adapter was copied into a slot on the device."""
    prefix_cache_queries: int = 0
    """Tokens looked up in the prefix cache."""
    prefix_cache_hits: int = 0
    """Tokens found there."""
    prefix_cache_evictions: int = 0
    """Blocks whose content was given up."""
    queue_time_counts: list[int] = []
    """Requests by the time until their first admission: for each of ``QUEUE_TIME_BUCKETS_S`` those
    up to it and above the one before; then those above all."""
    queue_time_sum_s: float = 0.0
    fairness_gap: float = 0.0
    """Largest difference in service (cost over weight) between two tenants with backlog."""
    spec_decode_num_drafts: int = 0
    """Speculative decoding: times that a request had drafted tokens checked."""
    spec_decode_num_draft_tokens: int = 0
    spec_decode_num_accepted_tokens: int = 0
    """Drafted tokens that were right, and so part of an output."""
    spec_decode_num_accepted_tokens_per_pos: list[int] = []
    """The same by place in the draft."""
    tenants: list[TenantStats] = []


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Engine to client, once: the model is loaded and requests are served from now on."""

    model: str
    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    device: str
    pid: int


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Engine to an attached client: says nothing. One that it cannot be sent to is gone."""


class LoadProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Engine to client while starting: a human sentence and the share done in [0, 1]."""

    message: str
    fraction: float


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Engine to client: the engine cannot go on; ``message`` names the cause and the mend."""

    message: str
    kind: Literal["config", "model", "internal"] = "internal"
    """Which error the client raises: ``ConfigError``, ``ModelLoadError`` or ``EngineDead``."""


EngineMessage = StepOutputs | AdapterAnswer | Stats | Ready | Probe | LoadProgress | Failed

_encoder = msgspec.msgpack.Encoder()
_client_decoder: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
_engine_decoder: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)


def encode(message: ClientMessage | EngineMessage) -> bytes:
    return _encoder.encode(message)


def decode_client_message(data: bytes) -> ClientMessage:
    """Raises ``msgspec.ValidationError`` for a record that breaks the contract."""
    return _client_decoder.decode(data)


def decode_engine_message(data: bytes) -> EngineMessage:
    """Raises ``msgspec.ValidationError`` for a record that breaks the contract."""
    return _engine_decoder.decode(data)
