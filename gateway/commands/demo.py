"""``sluice demo``: starts everything on one machine, with the bundled model or another.

``configure`` makes the settings. A ``Demo`` then starts:

    1 PostgreSQL   a private one in the data folder, migrated
    2 keys         server secrets, a tenant, a chat key and an admin key, made once
    3 server       the gateway and its engine process
    4 check        /readyz and a real completion, before the demo says that it is ready

The first SIGINT or SIGTERM stops them in the opposite order; the second one aborts running
requests. In both cases the exit code is 0, and no process is left. If PostgreSQL ends before, it is
started again; if that fails, the demo ends and says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import uvloop
from rich.console import Console
from rich.text import Text

import migrations
from engine import hub
from engine.client.transport import EngineProcess, MakeTransport, ReplayProcess
from engine.demo import MODEL_DIR
from engine.demo.embedding import EMBEDDING_MODEL_DIR
from engine.errors import NoChatTemplate
from engine.garbage import return_large_blocks, tune_collector
from engine.text.chat_template import ChatTemplate
from gateway import config as configuration
from gateway import logs
from gateway.admin import provisioning
from gateway.commands.data_dir import DataDir, Keys, Running
from gateway.commands.load_progress import LoadLines
from gateway.config import Config, ModelsConfig, ServedEngineConfig
from gateway.errors import AddressInUse, ConfigError, SetupError
from gateway.processes import server
from gateway.processes.signals import ending_signals_sent_to
from tenants.authenticator import Authenticator
from tenants.embedded import EmbeddedPostgres
from tenants.errors import AuthenticationFailed
from tenants.outage import OutageLog
from tenants.store import Store

TENANT = "demo"
MODEL, EMBEDDING_MODEL = "demo", "demo-embedding"
PROBE_TIMEOUT_S = 30.0
DATABASE_CHECK_S = 1.0
QUESTION = "Hello! What can you do?"

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "server": {"shutdown_timeout_s": 5.0, "log_level": "warning"},
    "engine": {"model": str(MODEL_DIR)},
}

T = TypeVar("T")
logger = logging.getLogger(__name__)


def configure(path: Path | None, data_dir: Path, *, env: Mapping[str, str] = os.environ) -> Config:
    """The settings of ``path``, if any, and of ``env``, for a demo with this folder.

    Raises ``ConfigError``, also for what a demo decides itself.
    """
    secrets_file = str(DataDir(data_dir.absolute()).secrets_file)
    defaults = {**DEFAULTS, "tenants": {"secrets_file": secrets_file}}
    config = configuration.load(path, env=env, defaults=defaults)
    decided = {
        "server.workers": config.server.workers == 1,
        "tenants.dsn": config.tenants.dsn is None,
        "tenants.direct_dsn": config.tenants.direct_dsn is None,
        "tenants.transaction_pooling": not config.tenants.transaction_pooling,
        "tenants.secrets_file": config.tenants.secrets_file == secrets_file,
    }
    for key, is_left in decided.items():
        if not is_left:
            raise ConfigError(
                f"{key} is for `sluice serve`: a demo has one worker, and a database of its own"
            )
    is_named = config.models.served_model_name is not None
    if config.engine.model != str(MODEL_DIR) or is_named or config.others:
        return config
    models = msgspec.structs.replace(config.models, served_model_name=MODEL)
    config = msgspec.structs.replace(config, models=models)
    return msgspec.structs.replace(config, others=(_embedder_beside(config),))


def _embedder_beside(config: Config) -> Config:
    """The settings of the bundled embedding model, whose engine begins with the first request."""
    return msgspec.structs.replace(
        config,
        engine=ServedEngineConfig(model=str(EMBEDDING_MODEL_DIR), device="cpu", num_threads=1),
        models=ModelsConfig(served_model_name=EMBEDDING_MODEL, min_replicas=0),
        fleet=msgspec.structs.replace(config.fleet, replicas=1),
    )


class Question:
    """The first question to a model: a chat, or a text to continue if it takes no chats."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        self.path = "/v1/chat/completions" if is_chat else "/v1/completions"
        messages = [{"role": "user", "content": QUESTION}]
        self.body = {"model": model} | ({"messages": messages} if is_chat else {"prompt": QUESTION})


class Demo:
    """One run of the demo."""

    def __init__(
        self,
        config: Config,
        *,
        data_dir: Path,
        ready_file: Path | None,
        replay_tokens_per_s: float | None = None,
    ) -> None:
        """config: from ``configure``. replay_tokens_per_s: answer with a fixed text at that rate,
        without the model."""
        if replay_tokens_per_s is not None:
            config = msgspec.structs.replace(config, others=())
        self._config = config
        self._question = Question(config.model_name, is_chat=True)
        self._folder = DataDir(data_dir)
        self._ready_files = [ready_file] if ready_file else []
        self._transport: MakeTransport = (
            EngineProcess
            if replay_tokens_per_s is None
            else partial(ReplayProcess, tokens_per_s=replay_tokens_per_s)
        )
        self._console = Console()
        self._num_signals = 0
        self._serving = False
        self._task: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Serve until a signal comes. Raises ``SetupError``, ``TenantsError``, ``EngineError``."""
        logs.configure(self._config.server.log_level, self._config.server.log_format)
        with (
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            # Only a signal cancels the task, and then everything is stopped already.
            contextlib.suppress(asyncio.CancelledError),
        ):
            runner.run(self._main())

    async def _main(self) -> None:
        self._task = asyncio.current_task()
        with ending_signals_sent_to(self._on_signal):
            # A taken port is found before anything is started; the server binds it again itself.
            self._check_address()
            self._folder.create()
            with self._folder.owned() as is_first:
                if is_first:
                    self._ready_files.append(self._folder.ready_file)
                else:
                    self._tell_of_the_first()
                await self._run()

    def _tell_of_the_first(self) -> None:
        running = self._folder.running()
        where = "" if running is None else f" at {running.url}"
        self._console.print(
            f"Another demo runs on {self._folder.root}{where}: this one shares its database, and "
            "commands that look for a demo find that one.",
            style="dim",
        )

    async def _run(self) -> None:
        # A demo that was killed leaves its ready file, which nobody must take for ours.
        for file in self._ready_files:
            self._clear(file)
        async with contextlib.AsyncExitStack() as stack:
            with self._progress() as say:
                say("Reading the model's files")
                is_chat = await _in_thread(lambda: _takes_chats(self._config))
                self._question = Question(self._config.model_name, is_chat=is_chat)
                store, database = await self._open_store(stack, say)
                keys = await self._keys(store)
                serving, loaded = self._start_server(store, say)
                # Whatever fails from here on, the server ends before its database does.
                stack.push_async_callback(_end, serving)
                running = await self._answers(serving, loaded, keys, say)
            with self._announced(running):
                ending = (serving, database)
                done, _ = await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
                await (serving if serving in done else done.pop())

    async def _open_store(
        self, stack: contextlib.AsyncExitStack, say: Callable[[str], None]
    ) -> tuple[Store, asyncio.Task[None]]:
        """The store, and the task with whose end the demo ends. ``stack`` stops the database."""
        say("Starting PostgreSQL")
        postgres = EmbeddedPostgres(self._folder.postgres)
        stack.push_async_callback(self._stop, postgres)
        dsn = await _in_thread(postgres.start)
        database = asyncio.create_task(_keep_running(postgres), name="database")
        stack.push_async_callback(_end, database)
        await migrations.upgrade(dsn)
        tenants = msgspec.structs.replace(self._config.tenants, dsn=dsn)
        self._config = msgspec.structs.replace(self._config, tenants=tenants)
        store = await Store.connect(dsn)
        stack.push_async_callback(store.close)
        return store, database

    async def _stop(self, postgres: EmbeddedPostgres) -> None:
        if self._num_signals:
            self._console.print("Stopping PostgreSQL", style="dim")
        await _in_thread(postgres.stop)

    def _on_signal(self, number: signal.Signals) -> None:
        """While it serves, the server acts on signals itself; before that, we do."""
        self._num_signals += 1
        assert self._task is not None
        if self._num_signals > 1:
            return
        if self._serving:
            self._console.print("\nStopping; press Ctrl-C again to stop at once", style="dim")
        else:
            self._task.cancel()

    # -- stages

    def _check_address(self) -> None:
        try:
            server.bind(self._config.server).close()
        except AddressInUse as exc:
            cause = str(exc).partition(";")[0]
            running = self._folder.running()
            settings = self._config.server
            if running and running.url == configuration.local_url(settings.host, settings.port):
                page = f"{running.url}/#key={running.api_key}"
                cause = f"{cause} by the demo that runs here already, at {page}"
            raise AddressInUse(f"{cause}; choose another --port or --host") from None

    def _clear(self, file: Path) -> None:
        """Fail before the start rather than after it if the ready file cannot be written."""
        if file.is_dir() or not os.access(file.parent, os.W_OK | os.X_OK):
            raise SetupError(f"{file} cannot be written; choose another --ready-file")
        file.unlink(missing_ok=True)

    async def _keys(self, store: Store) -> Keys:
        """The keys of the last run if they still work, else new ones."""
        pepper = self._folder.load_or_create_secrets().key_pepper
        await provisioning.ensure_tenant(store, TENANT)
        keys = self._folder.load_keys()
        authenticator = Authenticator(store, pepper)
        if keys is not None and await _all_work(authenticator, keys):
            return keys
        api_key = await provisioning.create_key(store, pepper, TENANT, name="demo", scopes=["chat"])
        admin_key = await provisioning.create_key(
            store, pepper, TENANT, name="demo admin", scopes=["chat", "owner"]
        )
        keys = Keys(api_key=api_key, admin_key=admin_key)
        self._folder.save_keys(keys)
        return keys

    def _start_server(
        self, store: Store, say: Callable[[str], None]
    ) -> tuple[asyncio.Task[None], asyncio.Future[str]]:
        loaded: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        say("Starting the engine")
        task = asyncio.create_task(
            server.serve(
                self._config,
                on_progress=LoadLines(say),
                on_ready=loaded.set_result,
                transport=self._transport,
                store=store,
            ),
            name="server",
        )
        return task, loaded

    async def _answers(
        self,
        task: asyncio.Task[None],
        loaded: asyncio.Future[str],
        keys: Keys,
        say: Callable[[str], None],
    ) -> Running:
        """Wait until the server answers a real question; raises what ended it if it does not."""
        await asyncio.wait((task, loaded), return_when=asyncio.FIRST_COMPLETED)
        if not loaded.done():
            await task
            raise asyncio.CancelledError  # it ended by itself: a signal came first
        url = loaded.result()
        say("Asking a first question")
        await _in_thread(lambda: _probe(url, keys.api_key, self._question))
        return Running(
            url=url,
            ws_url="ws" + url.removeprefix("http") + "/v1/chat",
            api_key=keys.api_key,
            admin_key=keys.admin_key,
            pid=os.getpid(),
        )

    # -- telling

    @contextlib.contextmanager
    def _progress(self) -> Iterator[Callable[[str], None]]:
        """Progress as one changing line on a terminal, or as separate lines in a pipe."""
        began = time.monotonic()
        if not self._console.is_terminal:
            yield lambda message: self._console.print(message, markup=False)
        else:
            with self._console.status("") as status:
                yield lambda message: status.update(
                    Text.assemble(message, (f"  {time.monotonic() - began:.0f} s", "dim"))
                )

    @contextlib.contextmanager
    def _announced(self, running: Running) -> Iterator[None]:
        tune_collector()
        return_large_blocks()
        self._serving = True
        self._print(running)
        try:
            # Last: who waits for the files finds everything else done.
            for file in self._ready_files:
                running.write(file)
            yield
        finally:
            for file in self._ready_files:
                running.remove(file)

    def _print(self, running: Running) -> None:
        body = {**self._question.body, "stream": True}
        curl = (
            f"curl -N {running.url}{self._question.path}"
            f" -H 'Authorization: Bearer {running.api_key}'"
            f" -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
        )
        self._console.print()
        for title, value, style in (
            ("Chat page", f"{running.url}/#key={running.api_key}", "bold cyan"),
            ("Admin page", f"{running.url}/admin/#key={running.admin_key}", "cyan"),
            ("API key", running.api_key, "bold"),
            ("Try it", curl, ""),
        ):
            self._console.print(title, style="dim")
            # Unwrapped, so that what is copied is what was meant.
            self._console.print(Text(value, style), soft_wrap=True)
            self._console.print()
        self._console.print("Ctrl-C stops everything.", style="dim")


async def _keep_running(postgres: EmbeddedPostgres) -> None:
    """Start the database again whenever it ends, until cancelled; the gateway bridges the gap.

    Raises ``EmbeddedPostgresError`` when it does not start. What only keeps us from looking, such
    as too many open files, may pass.
    """
    outage = OutageLog(logger)
    while True:
        await asyncio.sleep(DATABASE_CHECK_S)
        try:
            has_ended = await _in_thread(postgres.restart_if_ended)
        except OSError as error:
            outage.failed("Whether PostgreSQL runs is unknown: %s", error)
            continue
        outage.succeeded("PostgreSQL is watched again")
        if has_ended:
            logger.warning("PostgreSQL had ended, killed or crashed, and was started again")


async def _all_work(authenticator: Authenticator, keys: Keys) -> bool:
    try:
        for text in (keys.api_key, keys.admin_key):
            await authenticator.authenticate(text)
    except AuthenticationFailed:
        return False
    return True


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking work; when cancelled meanwhile, still wait for its end."""
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait((thread,))
        raise


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has cleaned up, whatever comes of it."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _takes_chats(config: Config) -> bool:
    """Whether the model, downloaded if need be, has a chat template. Raises ``ModelLoadError``."""
    folder = hub.fetch(config.engine.model, config.engine.revision)
    if config.models.chat_template is not None:
        return True
    try:
        ChatTemplate.load(folder)
    except NoChatTemplate:
        return False
    return True


def _probe(url: str, api_key: str, question: Question) -> None:
    """Ask ``/readyz``, then for a completion. Raises ``SetupError`` unless both are answered."""
    body = {**question.body, "max_tokens": 4}
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    _expect_200(url, "GET", "/readyz", None, {})
    _expect_200(url, "POST", question.path, msgspec.json.encode(body), headers)


def _expect_200(
    url: str, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = response.read().decode(errors="replace")
    except OSError as exc:
        raise SetupError(f"the server does not answer its own {path}: {exc}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise SetupError(f"{path} answered {response.status}: {answer[:300]}")
