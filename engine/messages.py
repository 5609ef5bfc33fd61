"""The only contract between a gateway and the engine process: typed msgpack records.

Every record crosses ZeroMQ as msgpack (``encode``/``decode_*`` below). Structs that travel once per
token are array-encoded. The engine never learns who a tenant is: it sees an opaque ``cache_salt``,
an opaque ``fair_key`` and two numbers, ``weight`` and ``priority``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.pooling import PoolingParams
from engine.sampling_params import SamplingParams

PROTOCOL = 2
"""The version of these records, for engines and gateways of different hosts. They work together if
theirs differ by at most 1: fields are added with defaults, and go one version after their last
use."""

FinishReason = Literal["stop", "length", "abort", "error"]


class AdapterRef(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter: all the engine needs to load it, now or again after it was put away."""

    name: str
    """Unique, and never reused for another adapter. The gateway uses its row's id."""
    path: str
    """The folder of ``adapter_config.json`` and ``adapter_model.safetensors``."""
    digest: str = ""
    """Digest of the files, from ``AdapterAnswer``; other files are refused. Empty: any files."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What another engine did for a request before it was moved here: counts of ``RequestOutput``
    that go on from here."""

    token_ids: list[int]
    """What it generated, all of which the client has got."""
    num_cached_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A picture in a prompt, already resized for the model.

    Inside its span, tokens with the id of the model's image token take the encoder's outputs, in
    order; others (breaks between rows of patches) keep their embeddings.
    """

    offset: int
    """Index in ``prompt_token_ids`` of the first token of its span."""
    num_tokens: int
    """Of the span."""
    height: int
    """Of the pixels, as ``width``."""
    width: int
    digest: bytes
    """32 bytes: BLAKE3 over mode, size, the bytes of the pixels and the parameters of their
    processing. Made by the gateway, never named by a client: pictures of equal digests and equal
    cache salts pass for the same."""
    pixels: bytes = b""
    """RGB, a byte each, row by row; see ``segment``."""
    segment: str = ""
    """In place of ``pixels``: the file in /dev/shm that holds them, for an engine on the same
    host."""


IDLE_PRIORITY = 2**40
"""Of requests that run only when nobody else wants the engine. No client can ask for it, and no
waiting makes up for it."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Client to engine: generate from ``prompt_token_ids`` or, with ``pooling``, compute one vector
    or score of them."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    """Left at its defaults with ``pooling``."""
    cache_salt: str = ""
    """Partitions the prefix cache; derived by the gateway, never taken from a client as is."""
    num_public_tokens: int = 0
    """How many leading prompt tokens are not secret (a named public prefix that the tenant chose):
    their full blocks are shared across salts. Set by the gateway only, as the salt is."""
    group: str = ""
    """Requests of one group share the blocks of their common prompt prefix, even where prefix
    caching is off: the completions of one prompt. Unique to them."""
    adapter: AdapterRef | None = None
    """The adapter that computes all its tokens, loaded first if necessary; None: the model
    itself."""
    fair_key: str = ""
    """Whom the scheduler charges for this request's work."""
    weight: float = 1.0
    priority: int = 0
    """Lower goes first, as in vLLM."""
    num_granted_tokens: int | None = None
    """New tokens it may generate until ``GrantTokens`` allows more; None: no such limit."""
    max_cached_blocks: dict[str, int] = {}
    """Groups that its blocks in the prefix cache count for, with the number of blocks that each
    group may have while no request uses them. Names are opaque; the latest bound of a group
    holds."""
    prediction_token_ids: list[int] = []
    """What the output is expected to be, in whole or in parts: where it is, drafts are taken from
    it. Never changes the output."""
    progress: Progress | None = None
    """Set for a request that was admitted by another engine: it goes on after these tokens, which
    are computed again like those of a preempted request, and is not refused for a full queue."""
    pooling: PoolingParams | None = None
    """Set for all requests of a model that pools, and for no others."""
    images: list[Image] = []
    """The pictures of the prompt, by ascending offsets; their spans are disjoint."""


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    """Client to engine: forget these requests at once. Unknown ids are ignored."""

    request_ids: list[str]
    if_waiting: bool = False
    """Only those that have not run here yet; the others go on."""


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
    """Client to engine: read and check an adapter now; answered with ``AdapterAnswer``.

    Loading it again is fine. One that does not fit leaves nothing behind.
    """

    call_id: int
    adapter: AdapterRef


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Client to engine: take no more requests for an adapter; answered with ``AdapterAnswer`` at
    once.

    Its running requests go on to their end, then it is forgotten. Unknown names are ignored.
    """

    call_id: int
    name: str


class Grant(msgspec.Struct, array_like=True, frozen=True):
    """How many new tokens a request may generate in total; never fewer than granted before."""

    request_id: str
    num_tokens: int
    is_last: bool = False
    """The last grant: the request ends there with ``length``, unless it ends before."""


class GrantTokens(msgspec.Struct, frozen=True, tag="grant"):
    """Client to engine: go on with requests that had a ``num_granted_tokens``. Unknown ids are
    ignored. At the end of its grant a request keeps its row and its blocks, and waits.
    """

    grants: list[Grant]


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Client to engine: finish the step in flight, then exit with code 0."""


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """Client to engine: a new client; answered with ``Ready``. The owner need not send it."""

    epoch: int = 0
    """In which it believes the engine to be: one that is wrong gets ``Failed``, and is not listened
    to. 0: it does not care."""


class BeginEpoch(msgspec.Struct, frozen=True, tag="epoch"):
    """Owner to engine: forget all attached clients and their requests, because they were told that
    this engine is gone."""

    epoch: int


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
    | BeginEpoch
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
    queue_s: float | None = None
    """With the first output after it: seconds from its arrival at the engine to its admission."""
    pooled: bytes | None = None
    """The result of a request with ``pooling``: float32 numbers, little-endian."""


class StepOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    """Engine to client: one message a step, with the outputs of all requests that have some."""

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
    """Requests that wait for their first admission."""
    computed_tokens: int = 0
    """Prompt tokens computed, without those computed again after a preemption."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    generation_tokens: int = 0
    preemptions_caused: int = 0
    preemptions_suffered: int = 0
    queued_tokens: int = 0
    """Prompt tokens of the requests that wait for their first admission."""
    num_admitted: int = 0
    """First admissions; ``queue_time_sum_s`` is the time that these waited."""
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
"""Upper bounds of the histogram: vLLM's, and some smaller ones."""


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """Engine to client: gauges and running totals since the engine started."""

    num_running: int = 0
    num_waiting: int = 0
    num_parked: int = 0
    """Set aside because their readers stall, or waiting for a grant."""
    num_swapped: int = 0
    """Of the waiting ones, preempted requests whose computed tokens are in host memory."""
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
    """Fewer than went out if requests end meanwhile, or find their blocks in the prefix cache."""
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
    epoch: int = 0
    """Of an engine that clients of other hosts find in the registry."""
    follows_kill: bool = False
    """Whether the engine before it of this name was killed from outside, which only its owner could
    see: no request is to blame for its end."""


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Engine to an attached client: has no content. A client that cannot be sent it is gone."""


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
