"""What each section of the settings holds."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from engine.client.router import RouterName
from engine.config import EngineConfig, Policy
from gateway.config.oidc import OidcConfig
from gateway.errors import ConfigError
from tenants.limits import MAX_PRICE, Price
from tenants.names import MAX_CONVERSATION_DAYS

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
TokenPrice = Annotated[int, msgspec.Meta(ge=0, le=MAX_PRICE)]

ToolParserName = Literal[
    "auto", "none", "hermes", "qwen", "llama", "mistral", "deepseek", "harmony"
]
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")
"""As browsers write it (RFC 6454, section 6.2), also of apps: ``capacitor://localhost``."""
_DEFAULT_PORT = re.compile(r"http://.*:80|https://.*:443")
"""Browsers leave it out."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP and WebSocket server and its limits."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8000
    """Port to listen on; 0 picks a free one."""
    unix_socket: str | None = None
    """Path of a Unix socket to listen on in place of ``host`` and ``port``; with one worker."""
    tls_certificate: str | None = None
    """PEM file of a certificate with its chain: HTTPS is served. Files that change are read again,
    for new connections."""
    tls_key: str | None = None
    """PEM file of its key."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are
    believed, such as ``10.0.0.0/8``; ``*`` stands for all, and is what a Unix socket needs."""
    metrics_port: Port | None = None
    """Port of another listener that serves ``/metrics``, to anybody who reaches it, without a key;
    0 picks a free one. By default ``/metrics`` needs an admin key."""
    metrics_host: str = "127.0.0.1"
    """Address of that listener."""
    workers: Positive = 1
    """Gateway processes that share the port and the engine."""
    allowed_origins: tuple[str, ...] = ()
    """Other web origins whose pages may call the API (CORS) and open WebSockets, as
    ``https://app.example.com``; ``*`` stands for all."""
    max_body_bytes: Positive = 4 * 1024 * 1024
    """Largest request body, except for files."""
    max_file_bytes: Positive = 512 * 1024 * 1024
    """Largest file that is uploaded."""
    max_header_bytes: Positive = 64 * 1024
    """Largest request line and headers together."""
    max_batch_lines: Annotated[int, msgspec.Meta(ge=0)] = 64
    """Most lines of batches that each worker runs at once; 0: none, others do."""
    max_connections: Positive = 10_000
    """Connections served at once. One more takes the place of one on which no request with a key is
    being answered: the oldest such of the address that has the most. If there is none, it is
    answered 503. WebSockets of one tenant take half of them at most."""
    header_timeout_s: Seconds = 10.0
    """Time for a client to send a request's headers."""
    body_timeout_s: Seconds = 30.0
    """Time for a client to send a request's body; for a file, a second more for each 64 KiB that
    have come."""
    keep_alive_timeout_s: Positive = 75
    """Idle time after which a connection is closed."""
    send_timeout_s: Seconds = 30.0
    """Time after which a client that reads nothing is dropped, and its requests with it."""
    max_unread_tokens: Positive = 512
    """Unread tokens of an answer above which a slow client's request is parked: others get its
    place in the batch until the client reads on."""
    stall_timeout_s: Seconds = 60.0
    """Time after which a request that stays parked is aborted."""
    engine_hang_timeout_s: Seconds = 120.0
    """Time without progress after which an engine with work is considered dead and restarted; must
    exceed the longest step."""
    worker_hang_timeout_s: Seconds = 30.0
    """Time after which one of several ``workers`` is killed and replaced if its event loop ran
    nothing, or stood still for most of it."""
    heartbeat_s: Seconds = 15.0
    """Silence on a stream after which a chunk without content is sent."""
    flush_interval_ms: Annotated[float, msgspec.Meta(ge=0)] = 14.0
    """Time between two chunks of a stream, or an eighth less; tokens that come in between are sent
    together."""
    resume_grace_s: Seconds = 30.0
    """How long a resumable stream runs without a reader before it is aborted."""
    stream_retention_s: Seconds = 300.0
    """How long a resumable stream can be read after its end."""
    idempotency_retention_s: Seconds = 86400.0
    """How long an ``Idempotency-Key`` stands for its answer."""
    max_stream_log_bytes: Positive = 4 * 1024 * 1024
    """Most bytes kept of one resumable stream; the oldest go first."""
    max_tenant_stream_log_bytes: Positive = 64 * 1024 * 1024
    """Most bytes kept of all resumable streams of one tenant; ended streams go first."""
    peer_host: str | None = None
    """This host's address for the gateways of other hosts; without it only workers of the same host
    resume each other's streams."""
    outbound_networks: tuple[str, ...] = ()
    """Networks that are not public and to which tenants may nevertheless have requests sent (the
    receivers of their webhooks), such as ``10.1.0.0/16``."""
    shutdown_timeout_s: Seconds = 30.0
    """Time for running requests to end after SIGTERM, before they are aborted."""
    ws_auth_timeout_s: Seconds = 10.0
    """Time for a WebSocket to authenticate."""
    ws_max_unauthenticated: Positive = 64
    """WebSockets of one address, in each worker, that have not authenticated yet. Behind a proxy
    all clients have its address."""
    ws_max_message_bytes: Positive = 1024 * 1024
    """Largest WebSocket message."""
    ws_max_frames_per_s: Positive = 200
    """Frames a second, pings and fragments included, above which a WebSocket is closed with 1008;
    for a moment twice as many are taken."""
    ws_max_turns: Positive = 16
    """Turns at once on one WebSocket."""
    ws_max_connection_s: Seconds = 3600.0
    """Age at which a WebSocket of the Responses API accepts no more requests, as at OpenAI."""
    ws_outbox_bytes: Positive = 256 * 1024
    """Unsent bytes of one turn at which that turn pauses."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""
    log_format: Literal["json", "text"] = "text"
    """One JSON object or one line of text for each record."""

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            given, missing = "tls_certificate", "tls_key"
            if self.tls_certificate is None:
                given, missing = missing, given
            raise ConfigError(f"server.{missing} is missing; server.{given} needs it")
        if self.unix_socket is not None and self.workers > 1:
            raise ConfigError(
                "server.unix_socket is for one worker; set server.workers = 1, or host and port"
            )
        for name in ("outbound_networks", "trusted_proxies"):
            for network in getattr(self, name):
                if name == "trusted_proxies" and network == "*":
                    continue
                try:
                    ip_network(network)
                except ValueError as error:
                    raise ConfigError(f"server.{name}: {error}") from None
        for origin in self.allowed_origins:
            if origin == "*":
                continue
            if not _ORIGIN.fullmatch(origin) or _DEFAULT_PORT.fullmatch(origin):
                raise ConfigError(
                    f"server.allowed_origins: {origin!r} is no origin; write it as browsers send "
                    "it, such as https://app.example.com, or * for all"
                )


def local_url(host: str, port: int, *, scheme: str = "http") -> str:
    """``http://host:port`` as a client on this machine can use it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class ServedEngineConfig(EngineConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine's settings as the gateway starts it: for several tenants at once."""

    policy: Policy = "fair_share"
    """Who goes first: by arrival (``fcfs``), by ``priority``, or the tenant that has received the
    least service for its weight (``fair_share``)."""
    prefix_cache_tenant_floor: float = 0.05
    """Share of the blocks that a tenant's cached prefixes keep while other tenants have more."""
    target_gap_ms: float | None = 50.0
    """How long a step may take for the sake of prompts while other requests generate: about the
    longest gap between a stream's tokens. Steps are that long only where prompts wait too long
    otherwise (``target_ttft_ms``). None: only ``max_num_batched_tokens`` limits steps, which suits
    offline use."""
    max_num_queued_reqs: int | None = 1024
    """Most requests that may wait for their first admission; further ones are refused
    (``QueueFull``) to tenants that have their part of these, which is the same for all who wait."""


class TenantsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where tenants, keys and the ledger live."""

    dsn: str | None = None
    """PostgreSQL, as ``postgresql://user@host/database``."""
    direct_dsn: str | None = None
    """The same database without a pooler, for migrations and for notifications of changes; by
    default ``dsn``."""
    transaction_pooling: bool = False
    """Whether ``dsn`` leads to a pooler in transaction mode, such as PgBouncer; then ``direct_dsn``
    must not."""
    secrets_file: str = ".sluice/secrets.json"
    """The pepper of the keys and the root of the cache salts; must be readable by its owner only.
    """
    journal_dir: str | None = None
    """Where usage is kept while PostgreSQL is away; by default ``journal`` beside the secrets."""
    key_grace_s: Annotated[float, msgspec.Meta(ge=30)] = 60.0
    """How long a key works while PostgreSQL is away, from when it was looked up last (every 30 s of
    use). More helps keys that are used rarely; but what is revoked meanwhile works as long, where
    only this gateway cannot reach the database."""
    max_cached_keys: Positive = 10_000
    """Most keys that each worker remembers; others are looked up in PostgreSQL at each request."""
    outage_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens that each worker serves of a tenant, project or key with limits while PostgreSQL is
    away, if it has not read before what these leave; 0: none, such requests get 503."""
    usage_retention_months: Positive | None = None
    """Whole months for which the ledger keeps single requests; their sums stay. By default all."""

    def __post_init__(self) -> None:
        if self.transaction_pooling and self.direct_dsn is None:
            raise ConfigError(
                "tenants.direct_dsn is missing; with tenants.transaction_pooling set it to the "
                "database's own address, past the pooler"
            )

    @property
    def session_dsn(self) -> str | None:
        """A DSN whose sessions are not shared, for LISTEN and for migrations."""
        return self.direct_dsn or self.dsn

    response_retention_s: Seconds = 30 * 86400.0
    """How long a stored response is kept after its last use, and a stored chat."""
    max_response_bytes: Positive = 1024 * 1024 * 1024
    """Most bytes kept of a tenant's stored responses, and of its chats; the oldest go first."""
    max_conversation_bytes: Positive = 1024 * 1024 * 1024
    """Most bytes of all conversations of one tenant; what would be more is refused."""
    conversation_days: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONVERSATION_DAYS)] | None = None
    """For how many days after its last use a conversation is kept, of tenants for whom ``sluice
    tenant update --conversation-days`` says nothing else; by default until it is deleted. 0:
    nothing is kept, neither by the API nor by the chat page."""
    max_files_bytes: Positive = 10 * 1024 * 1024 * 1024
    """Most bytes of all files of one tenant; what would be more is refused."""

    @property
    def journal_folder(self) -> Path:
        return Path(self.journal_dir or Path(self.secrets_file).parent / "journal")


class PublicPrefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system prompt that is no secret."""

    system: Annotated[str, msgspec.Meta(min_length=1)]
    """Its text, exactly as requests send it."""
    tenants: tuple[str, ...] = ()
    """Names of the tenants that chose to share its place in the prefix cache."""


class ModelsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How clients see the model."""

    served_model_name: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """The model's name in the API; by default the last part of ``engine.model``."""
    aliases: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ()
    """Further names that requests may use for the model; answers, metrics and the ledger have its
    own."""
    generation_config: Literal["auto", "ignore"] = "auto"
    """Where sampling defaults come from when a request sets none: the model's own
    ``generation_config.json``, or nowhere (temperature 1)."""
    chat_template: str | None = None
    """File of a chat template to use in place of the model's own. A model that has neither
    completes texts only."""
    tool_parser: ToolParserName = "auto"
    """How the model writes tool calls; ``auto`` finds out from its chat template."""
    reasoning_parser: Literal["auto", "none", "think", "harmony"] = "auto"
    """What is returned as ``reasoning_content``: text between ``<think>`` and ``</think>``, or
    harmony's ``analysis`` channel; ``auto``: if the chat template uses them."""
    template_kwargs: tuple[str, ...] = ("enable_thinking", "thinking")
    """Variables of the chat template that requests may set with ``chat_template_kwargs``."""
    adapters_dir: str | None = None
    """Folder below which administrators may load LoRA adapters from; needs
    ``engine.enable_lora``."""
    service_tiers: dict[str, int] | None = None
    """Values of ``service_tier`` besides ``default`` and ``flex`` (which is served after it), and
    what each adds to a request's priority: ``{priority = -10}`` lets those who ask for it go
    first."""
    min_replicas: Annotated[int, msgspec.Meta(ge=0)] = 1
    """The fewest engines that ``sluice fleet up`` keeps running. 0: none while nobody asks for the
    model; the first requests wait until one has loaded it (``fleet.cold_start_wait_s``). So do
    engines that this server starts, if it has one worker: they begin with the first request."""
    max_replicas: Positive | None = None
    """The most engines that it runs; by default ``min_replicas``, but at least 1."""
    default_max_tokens: Positive | None = None
    """New tokens when a request sets no limit; by default what fits the model."""
    public_prefixes: dict[str, PublicPrefix] = {}
    """Named system prompts that are not secret: ``{helper = {system = "You are ...", tenants =
    ["acme", "globex"]}}``. The tenants listed share what is cached for the prompt, and nothing
    else."""
    price_prompt: TokenPrice = 0
    """Millionths of your currency for a million prompt tokens: 150000 for $0.15."""
    price_cached: TokenPrice = 0
    """The same for prompt tokens found in the prefix cache; not above ``price_prompt``."""
    price_completion: TokenPrice = 0
    """The same for generated tokens."""

    def __post_init__(self) -> None:
        if self.price_cached > self.price_prompt:
            raise ConfigError("models.price_cached must not be above models.price_prompt")
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ConfigError("models.max_replicas must not be below models.min_replicas")

    @property
    def price(self) -> Price:
        """What tenants are charged."""
        return Price(
            prompt=self.price_prompt, cached=self.price_cached, completion=self.price_completion
        )


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenTelemetry traces of requests."""

    otlp_endpoint: str | None = None
    """Where spans are sent (OTLP over HTTP), such as ``http://collector:4318/v1/traces``; needs the
    extra ``otel``. Headers for it come from ``OTEL_EXPORTER_OTLP_HEADERS``. By default nothing is
    traced."""
    sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    """Share of the traces that are recorded, each of which takes 0.1 ms of CPU; a request
    with a ``traceparent`` is recorded or left out as that says."""
    service_name: Annotated[str, msgspec.Meta(min_length=1)] = "sluice"
    """The name under which the collector has them."""

    def __post_init__(self) -> None:
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(
            ("http://", "https://")
        ):
            raise ConfigError(
                f"tracing.otlp_endpoint: {self.otlp_endpoint!r} is no URL; write it whole, such as "
                "http://collector:4318/v1/traces"
            )


class FleetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engines behind the gateway, and what happens when one of them dies."""

    replicas: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Engines of the model that the gateway runs on this host. On GPUs each has its own
    (``engine.tensor_parallel_size`` times ``engine.pipeline_parallel_size``); on a CPU they share
    its cores, unless ``engine.num_threads`` is set. 0: none, those that join (``sluice engine``) do
    all the work."""
    router: RouterName = "d2lpm"
    """How an engine is chosen for a request: ``d2lpm``, where most of the prompt is cached, less
    what waits there; ``session_affine``, the same one for a tenant's prompts that begin with the
    same 128 tokens while it is not loaded above the average; ``least_loaded``; or ``random``."""
    failover_wait_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """How long the requests of an engine that has died wait for one to go on with them, if no other
    is ready; then they fail. 0: not at all."""
    engine_host: str = "127.0.0.1"
    """This host's address for the gateways of other hosts, at which ``sluice engine`` listens."""
    engine_port: Port = 0
    """The port that it listens on there; 0 picks a free one."""
    scale_up_queue_s: Seconds = 2.0
    """How long requests may wait to be run before ``sluice fleet up`` starts more engines, up to
    ``models.max_replicas``."""
    scale_up_after_s: Seconds = 10.0
    """How long that must go on first."""
    scale_down_after_s: Seconds = 300.0
    """How long fewer engines must have sufficed before some are drained and ended, down to
    ``models.min_replicas``."""
    cold_start_wait_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    """How long requests for a model with ``models.min_replicas`` 0 wait for an engine that is
    started for them, if none serves; then they get 503. 0: not at all, though one is started."""
    ray_resources: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}
    """What an engine takes of its Ray node, laid over what ``engine`` implies: a ``GPU`` and a
    ``CPU`` for each rank, or on a CPU ``engine.num_threads``. ``{"accelerator_type:H200" = 0.01}``
    puts it on such nodes only."""
    engine_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    """The name of ``sluice engine`` in the registry, another one for each; by default its host and
    port."""
    engine_node: str | None = None
    """Where it runs, as ``sluice fleet list`` shows it; by default the name of its host."""


class McpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """MCP servers, whose tools responses may use; needs the extra ``mcp``."""

    timeout_s: Seconds = 30.0
    """How long a server may take to list its tools, or for one call."""
    max_calls: Positive = 32
    """Most calls of one response, which may ask for fewer by ``max_tool_calls``."""
    max_answer_bytes: Positive = 1024 * 1024
    """Most bytes that a server may send in one exchange."""


class ImagesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pictures of requests, for models that see."""

    max_images: Positive = 16
    """Most images of one request, those of its earlier messages included."""
    max_bytes: Positive = 20 * 1024 * 1024
    """Most bytes of an image, as it comes. Images in a request count towards
    ``server.max_body_bytes`` as well, with a third more for base64."""
    max_pixels: Positive = 50_000_000
    """Most pixels of an image, as it comes."""
    timeout_s: Seconds = 5.0
    """Processor time to decode an image and to resize it."""
    workers: Positive = 2
    """Processes that decode images, of each gateway process; one tenant has all but one at most.
    They start when they are needed."""
    max_memory_bytes: Positive = 1024 * 1024 * 1024
    """Most bytes of decoded images, of the requests that run in each gateway process; one tenant
    has half at most. They are in ``/dev/shm``, if there is room, for engines of this host."""
    fetch_hosts: tuple[str, ...] = ()
    """Hosts from which images are fetched by HTTPS, such as ``images.example.com``,
    ``*.example.com`` for all below it, or ``*`` for all; with another port than 443,
    ``images.example.com:8443``. By default none is fetched. Only public addresses are connected
    to, and those of ``server.outbound_networks``."""
    fetch_timeout_s: Seconds = 5.0
    """Time to fetch an image, redirects included."""
    fetch_redirects: Annotated[int, msgspec.Meta(ge=0, le=10)] = 3
    """Most redirects to follow, each to one of ``fetch_hosts``."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file, as the parts of one model read it."""

    server: ServerConfig = ServerConfig()
    engine: ServedEngineConfig
    models: ModelsConfig = ModelsConfig()
    tenants: TenantsConfig = TenantsConfig()
    tracing: TracingConfig = TracingConfig()
    fleet: FleetConfig = FleetConfig()
    oidc: OidcConfig = OidcConfig()
    mcp: McpConfig = McpConfig()
    images: ImagesConfig = ImagesConfig()
    others: tuple[Config, ...] = ()
    """The same for each further model of ``[[models]]``, with other values of ``engine``,
    ``models`` and ``fleet.replicas``."""

    def __post_init__(self) -> None:
        if self.engine.enable_lora and self.models.adapters_dir is None:
            raise ConfigError(
                "models.adapters_dir is missing; with engine.enable_lora set it to the folder of "
                "the adapters"
            )
        if self.models.adapters_dir is not None and not self.engine.enable_lora:
            raise ConfigError(
                "models.adapters_dir needs engine.enable_lora = true; set it or leave both out"
            )

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        return self.models.served_model_name or Path(self.engine.model).name

    def one(self, name: str | None) -> Config:
        """The settings of the model of this name. Raises ``ConfigError``."""
        for one in self.each:
            if one.model_name == name:
                return msgspec.structs.replace(one, others=())
        names = ", ".join(one.model_name for one in self.each)
        raise ConfigError(f"--model must name one of the models of the settings: {names}")

    @property
    def may_sleep(self) -> bool:
        """Whether there may be no engine of the model while nobody asks for it."""
        starts_late = self.fleet.replicas == 0 or self.server.workers == 1
        return self.models.min_replicas == 0 and starts_late

    @property
    def each(self) -> tuple[Config, ...]:
        """The settings as each model's parts read them, the default model's first."""
        return self, *self.others
