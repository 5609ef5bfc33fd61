"""Makes the parts of the gateway, each once, and passes them to those that need them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from starlette.types import Scope
from starlette.websockets import WebSocket

from engine.client.fleet import Fleet
from engine.client.fleets import Fleets
from gateway import context
from gateway.admin.adapters import Adapters
from gateway.admin.revocations import Revocations
from gateway.admin.webhooks import WebhookSender
from gateway.admission.admission import Admission
from gateway.admission.cold_start import MAX_WAITING, ColdStart
from gateway.admission.model import Model
from gateway.admission.served_models import ServedModels
from gateway.answers.kept import KeptChats
from gateway.batches.files import Uploads
from gateway.batches.runner import BatchRunner
from gateway.concurrency.background import Background
from gateway.concurrency.fair_starts import FairStarts
from gateway.config import Config, TenantsConfig
from gateway.errors import ConfigError
from gateway.fleet.identity import derive_keys as fleet_keys
from gateway.fleet.registry import Registry
from gateway.generation.compliance import ComplianceChecks
from gateway.generation.flushes import Flushes
from gateway.generation.generation import Generations
from gateway.images.images import Images
from gateway.lifecycle import Lifecycle, Session
from gateway.mcp.servers import McpServers
from gateway.metrics.engine import EngineCollector
from gateway.metrics.metrics import Metrics
from gateway.oidc.sign_in import SignIn
from gateway.peers.peers import Peers
from gateway.peers.routed_ids import new_worker_id
from gateway.peers.wire import derive_keys
from gateway.prompts.threads import PromptThreads
from gateway.responses.conversations import ConversationItems
from gateway.responses.responses import Responses
from gateway.secrets import Secrets
from gateway.sockets import open_sockets
from gateway.sockets.chat_session import ChatSession
from gateway.sockets.open_sockets import OpenSockets
from gateway.sockets.responses_session import ResponsesSession
from gateway.sockets.session import Shared
from gateway.sockets.tickets import Tickets
from gateway.streams.archive import StreamArchive
from gateway.streams.log import StreamLog
from gateway.streams.streams import Streams
from gateway.transport.cork import Cork
from tenants import upkeep
from tenants.authenticator import CacheBounds
from tenants.changes import Change, ChangeListener
from tenants.errors import StoreUnavailable
from tenants.journal import Journal
from tenants.lanes import Lanes
from tenants.last_used import LastUsed
from tenants.quota import Quota
from tenants.refused import RefusalLog
from tenants.standby import Standby
from tenants.store import Store
from tenants.usage import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The parts that several others are made of."""

    config: Config
    worker_id: str
    """This process, for the others."""
    engine: Fleets
    store: Store
    secrets: Secrets
    metrics: Metrics
    # Text
    models: ServedModels
    prompt_threads: PromptThreads
    images: Images
    grammar_lanes: Lanes
    """One grammar of each tenant is checked at a time, so that a slow one holds up its owner
    only."""
    # Keys, limits and usage
    journal: Journal
    ledger: Ledger
    quota: Quota
    last_used: LastUsed
    refused: RefusalLog
    authenticator: SignIn
    """Also signs people in on the pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(Base):
    """All parts that routes and middleware need. ``create_services`` makes it."""

    revocations: Revocations
    generations: Generations
    admission: Admission
    lifecycle: Lifecycle
    peers: Peers
    streams: Streams
    responses: Responses
    conversations: ConversationItems
    chats: KeptChats
    adapters: Adapters
    uploads: Uploads
    batches: BatchRunner
    tickets: Tickets
    strangers: OpenSockets
    """WebSockets that have not authenticated yet, by address."""
    members: OpenSockets
    """Those that have, by tenant."""
    starts: FairStarts
    cork: Cork
    """Holds what the outputs of one step send to clients; see ``cork``."""

    def count_refusal(self, scope: Scope, code: str) -> None:
        """Count a request that is refused with this code, whoever sent it."""
        self.metrics.count_refusal(code)
        principal = context.of(scope).principal
        if principal is not None:
            self.refused.note(principal.key, code)

    def chat_session(self, socket: WebSocket, api_key: str | None) -> ChatSession:
        """A session over a socket not yet accepted."""
        shared = Shared(self.config.server, self.authenticator, self.starts)
        return ChatSession(socket, api_key, shared, self.admission, self.generations, self.streams)

    def responses_session(self, socket: WebSocket, api_key: str | None) -> ResponsesSession:
        """A session over a socket not yet accepted."""
        shared = Shared(self.config.server, self.authenticator, self.starts)
        return ResponsesSession(socket, api_key, shared, self.responses)


def create_services(
    config: Config,
    *,
    engine: Fleet | Fleets,
    store: Store,
    secrets: Secrets,
    metrics_folder: Path | None = None,
) -> Services:
    """Make all parts. Nothing runs yet: ``lifecycle.start`` starts the background tasks.

    ``engine``: a lone model's, or those of each. ``metrics_folder``: as for ``create_app``. Raises
    ``ModelLoadError`` if a model's tokenizer or chat template cannot be read, and ``ConfigError``
    if the folder of the usage journal cannot be used, or a chat template refuses a public system
    prompt.
    """
    if isinstance(engine, Fleet):
        engine = Fleets({config.model_name: engine})
    base = _create_base(config, engine, store, secrets, metrics_folder)
    cork = Cork()
    models = base.models
    adapters = Adapters(models, store)
    admission = _create_admission(base)
    generations = _create_generations(base, cork)
    peers = _create_peers(base)
    streams = _create_streams(base, peers)
    sessions: set[Session] = set()
    revocations = Revocations(
        base.authenticator,
        generations=generations,
        sessions=sessions,
        readers=streams.readers,
        on_adapter_deleted=adapters.on_deleted,
    )
    conversations = ConversationItems(config, store.conversations)
    registry = Registry(store.shared, engine, config, fleet_keys(secrets.key_pepper))
    batches = _create_batches(base, admission)
    work = _create_background(base, peers, adapters, revocations, registry, batches)
    engine.observe(around_outputs=cork, on_tokens=base.metrics.observe_inter_token)
    _watch(base, generations, registry, work, batches)
    lifecycle = Lifecycle(
        engine=engine,
        store=store,
        ledger=base.ledger,
        journal=base.journal,
        background=work,
        sessions=sessions,
        readers=streams.readers,
        admission=admission,
        generations=generations,
        compilers=[model.compiler for model in models.all],
        images=base.images if models.any_sees else None,
        timeout_s=config.server.shutdown_timeout_s,
    )
    return Services(
        **{part.name: getattr(base, part.name) for part in fields(Base)},
        revocations=revocations,
        generations=generations,
        admission=admission,
        lifecycle=lifecycle,
        peers=peers,
        streams=streams,
        responses=_create_responses(base, conversations, peers, admission, generations),
        conversations=conversations,
        chats=KeptChats(config, store.chats),
        adapters=adapters,
        uploads=Uploads(config, store.files),
        batches=batches,
        tickets=Tickets(peers),
        strangers=open_sockets.of_strangers(config.server.ws_max_unauthenticated),
        members=open_sockets.of_tenants(config.server.max_connections),
        starts=FairStarts(),
        cork=cork,
    )


def _create_base(
    config: Config,
    engine: Fleets,
    store: Store,
    secrets: Secrets,
    metrics_folder: Path | None,
) -> Base:
    threads = PromptThreads()
    images = Images(config, store.files)
    models = ServedModels(
        [Model.load(one, engine[one.model_name], threads, images=images) for one in config.each]
    )
    metrics = Metrics(metrics_folder)
    # The first part that holds resources. What may raise comes before it.
    journal = _open_journal(config.tenants)
    ledger = Ledger(store, journal=journal)
    last_used = LastUsed(store)
    worker_id = new_worker_id()
    return Base(
        config=config,
        worker_id=worker_id,
        engine=engine,
        store=store,
        secrets=secrets,
        metrics=metrics,
        models=models,
        prompt_threads=threads,
        images=images,
        grammar_lanes=Lanes(),
        journal=journal,
        ledger=ledger,
        quota=Quota(
            store,
            standby=Standby(
                worker_id=worker_id,
                allowance_tokens=config.tenants.outage_tokens,
                keep_s=config.tenants.key_grace_s,
                is_pending=ledger.is_pending,
            ),
        ),
        last_used=last_used,
        refused=RefusalLog(store),
        authenticator=_authenticator(config, store, secrets.key_pepper, last_used),
    )


def _authenticator(config: Config, store: Store, pepper: bytes, last_used: LastUsed) -> SignIn:
    bounds = CacheBounds(
        max_stale_s=config.tenants.key_grace_s, max_entries=config.tenants.max_cached_keys
    )
    return SignIn(config.oidc, store, pepper, bounds, last_used)


def _create_responses(
    base: Base,
    conversations: ConversationItems,
    peers: Peers,
    admission: Admission,
    generations: Generations,
) -> Responses:
    return Responses(
        base.config,
        base.store.shared,
        conversations,
        peers,
        admission,
        generations,
        McpServers(base.config, base.store),
    )


def _create_batches(base: Base, admission: Admission) -> BatchRunner:
    return BatchRunner(
        base.config,
        store=base.store,
        authenticator=base.authenticator,
        admission=admission,
        metrics=base.metrics,
    )


def _watch(
    base: Base,
    generations: Generations,
    registry: Registry,
    work: Background,
    batches: BatchRunner,
) -> None:
    """Have the metrics show what other parts count."""
    metrics, engine = base.metrics, base.engine
    metrics.watch(running=lambda: len(generations), engines=partial(_collectors, engine))
    metrics.watch_moves(engine, registry.num_refused)
    metrics.watch_background(lambda: work.num_deaths)
    metrics.watch_ledger(base.ledger)
    metrics.watch_batches(lambda: batches.num_running, lambda: batches.num_waiting)


def _create_background(
    base: Base,
    peers: Peers,
    adapters: Adapters,
    revocations: Revocations,
    registry: Registry,
    batches: BatchRunner,
) -> Background:
    """What runs beside the requests, as long as the gateway runs, by the name of its task."""
    metrics, session_dsn = base.metrics, base.config.tenants.session_dsn
    sender = WebhookSender(
        base.store.webhooks, base.secrets.key_pepper, base.config.server.outbound_networks
    )
    metrics.watch_webhooks(sender.num_attempts, lambda: sender.backlog)
    work: dict[str, Callable[[], Awaitable[None]]] = {
        "quota leases": base.quota.run,
        "quota for outages": base.quota.follow,
        "settlements of the dead": base.ledger.run,
        "last uses of keys": base.last_used.run,
        "refusals": base.refused.run,
        "line to other workers": peers.run,
        "deleted adapters": adapters.run,
        "upkeep": partial(
            upkeep.run,
            base.store,
            usage_retention_months=base.config.tenants.usage_retention_months,
            conversation_days=base.config.tenants.conversation_days,
        ),
        "revocations": revocations.run,
        "registry of engines": registry.run,
        "webhooks": sender.run,
        "batches": batches.run,
    }

    def on_change(change: Change) -> None:
        revocations.on_change(change)
        registry.on_change(change)

    if metrics.worker_metrics is not None:
        work["metrics for other workers"] = metrics.worker_metrics.run
    if session_dsn is not None:  # LISTEN needs a database.
        listener = ChangeListener(session_dsn, on_change)
        metrics.watch_changes(listener)
        work["changes"] = listener.run
    return Background(work)


def _create_admission(base: Base) -> Admission:
    return Admission(
        models=base.models,
        ledger=base.ledger,
        quota=base.quota,
        authenticator=base.authenticator,
        secrets=base.secrets,
        prompt_threads=base.prompt_threads,
        grammar_lanes=base.grammar_lanes,
        cold_starts={
            model.name: _cold_start(model, base)
            for model in base.models.all
            if model.config.may_sleep
        },
    )


def _cold_start(model: Model, base: Base) -> ColdStart:
    async def ask() -> bool:
        if model.engine.spawns and model.engine.engines:
            return model.engine.wake()
        try:
            return await base.store.shared.want_model(model.name)
        except StoreUnavailable:
            return False  # Those who start engines do not hear of it either.

    return ColdStart(
        model.engine,
        ask,
        wait_s=model.config.fleet.cold_start_wait_s,
        max_waiting=model.config.engine.max_num_queued_reqs or MAX_WAITING,
    )


def _create_generations(base: Base, cork: Cork) -> Generations:
    return Generations(
        ledger=base.ledger,
        quota=base.quota,
        metrics=base.metrics,
        flushes=Flushes(base.config.server.flush_interval_ms / 1000, cork),
        checks=ComplianceChecks(base.models.default.compiler.submit_validation, base.grammar_lanes),
    )


def _collectors(fleets: Fleets) -> dict[tuple[str, str], EngineCollector]:
    """By model and engine."""
    return {
        (model, engine.name): EngineCollector(engine.stats, is_ready=engine.ready)
        for model, fleet in fleets.items()
        for engine in fleet.engines
    }


def _create_peers(base: Base) -> Peers:
    return Peers(
        base.store.shared,
        worker_id=base.worker_id,
        keys=derive_keys(base.secrets.key_pepper),
        host=base.config.server.peer_host,
    )


def _create_streams(base: Base, peers: Peers) -> Streams:
    server = base.config.server
    log = StreamLog(
        max_stream_bytes=server.max_stream_log_bytes,
        max_tenant_bytes=server.max_tenant_stream_log_bytes,
        retention_s=server.stream_retention_s,
    )
    return Streams(
        log,
        StreamArchive(base.store.shared, max_tenant_bytes=server.max_tenant_stream_log_bytes),
        peers,
        grace_s=server.resume_grace_s,
        heartbeat_s=server.heartbeat_s,
        retention_s=server.stream_retention_s,
    )


def _open_journal(config: TenantsConfig) -> Journal:
    try:
        return Journal(config.journal_folder)
    except OSError as exc:
        raise ConfigError(
            f"{config.journal_folder}: usage cannot be kept here ({exc.strerror}); "
            "set tenants.journal_dir to a folder that can be written"
        ) from None
