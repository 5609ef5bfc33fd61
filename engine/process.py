"""The engine process: receive, step, send; one message a step.

``engine.client.transport`` starts it as ``python -m engine.process`` and writes a ``Launch`` to its
stdin, as one line. The process ends as soon as that pipe closes: no gateway, no engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

import msgspec
import zmq

from engine.adapters import Adapters, LoadedAdapter, OnLoaded
from engine.config import EngineConfig
from engine.errors import AdapterLoadError, ConfigError, EngineError, ModelLoadError
from engine.garbage import tune_collector
from engine.launch import Launch
from engine.messages import (
    AbortRequest,
    AdapterAnswer,
    AdapterRef,
    Attach,
    BeginEpoch,
    ClientMessage,
    EngineMessage,
    Failed,
    GenerateRequest,
    Grant,
    GrantTokens,
    LoadAdapter,
    LoadProgress,
    ParkRequest,
    Ping,
    Ready,
    RequestOutput,
    Shutdown,
    Stats,
    UnloadAdapter,
    UnparkRequest,
    encode,
)
from engine.sockets import OWNER, SEND_HIGH_WATER_MARK, Clients, admit_only, listen
from engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from engine.runner import TorchRunner
    from engine.runner.pooling import EncoderRunner
    from grammar.compiler import GrammarCompiler

logger = logging.getLogger(__name__)

LINGER_MS = 1000
PR_SET_PDEATHSIG = 1  # linux/prctl.h

OnProgress = Callable[[LoadProgress], None]


class Core(Protocol):
    """What the loop needs of ``engine.core.EngineCore``."""

    @property
    def has_unfinished(self) -> bool: ...

    def add_request(self, request: GenerateRequest) -> None: ...

    def abort(self, request_ids: list[str], *, if_waiting: bool = False) -> None: ...

    def park(self, request_ids: list[str]) -> None: ...

    def unpark(self, request_ids: list[str]) -> None: ...

    def load_adapter(self, adapter: AdapterRef, on_done: OnLoaded) -> None: ...

    def unload_adapter(self, name: str) -> None: ...

    def grant(self, grants: list[Grant]) -> None: ...

    def step(self) -> list[RequestOutput]: ...

    def stats(self) -> Stats: ...


def _nothing() -> None:
    """Nothing to warm up, or to close."""


class Engine(msgspec.Struct, frozen=True):
    """A loaded model, ready to step."""

    core: Core
    ready: Ready
    max_tokens_launched: int | None = None
    """The most tokens of a step, if ``core.step`` returns while the device still computes them;
    None if it returns their results."""
    warm_up: Callable[[], object] = _nothing
    """Starts, in the background, what the first request with a grammar would otherwise wait for."""
    close: Callable[[], object] = _nothing
    """Ends what runs beside the core."""


def build_engine(
    config: EngineConfig, on_progress: OnProgress, on_lost: Callable[[str], None] | None = None
) -> Engine:
    """Load the model and wire the core to it. on_lost: called by a thread if one of several ranks
    is lost. Raises ``ModelLoadError`` or ``ConfigError``."""
    # Imported here, so that the first message goes out before torch is loaded.
    from engine.core import EngineCore
    from engine.runner import load_pooling_runner, load_runner
    from engine.runner.memory import device_bytes
    from engine.runner.runner import TorchRunner

    pooling, tokenizer = config.pooling, None
    runner: TorchRunner | EncoderRunner
    if pooling is not None:
        config = config.for_pooling(pooling)
        runner = load_pooling_runner(config, pooling, on_progress=on_progress)
    else:
        if not config.skip_tokenizer_init:
            tokenizer = Tokenizer.load(config.model_dir)
        runner = load_runner(config, on_progress=on_progress, on_lost=on_lost)
    config = config.for_device(runner.device.type, device_bytes(runner.device))
    if isinstance(runner, TorchRunner):
        config = msgspec.structs.replace(config, max_num_seqs=runner.max_num_seqs)
    eos_token_ids = frozenset(runner.eos_token_ids)
    if tokenizer is not None:
        eos_token_ids |= tokenizer.eos_token_ids
    grammar = _grammar_compiler(tokenizer, eos_token_ids, runner.vocab_size)
    core = EngineCore(
        config,
        runner,
        max_model_len=runner.max_model_len,
        eos_token_ids=eos_token_ids,
        grammar=grammar,
        adapters=(
            None
            if runner.adapter_memory is None
            else Adapters(runner.adapter_memory, max_cpu_loras=config.max_cpu_loras)
        ),
    )
    ready = Ready(
        model=config.model,
        max_model_len=runner.max_model_len,
        vocab_size=runner.vocab_size,
        block_size=config.block_size,
        num_blocks=runner.num_blocks,
        device=str(runner.device),
        pid=os.getpid(),
    )
    launched = config.step_tokens if config.async_scheduling else None
    if grammar is None:
        return Engine(core, ready, launched)
    return Engine(core, ready, launched, warm_up=grammar.start, close=grammar.close)


def _grammar_compiler(
    tokenizer: Tokenizer | None, eos_token_ids: frozenset[int], logits_width: int
) -> GrammarCompiler | None:
    """None where grammars cannot work, because token ids have no text."""
    if tokenizer is None:
        return None
    from grammar.compiler import GrammarCompiler
    from grammar.vocabulary import Vocabulary

    return GrammarCompiler(
        Vocabulary(
            tokenizer.vocabulary(),
            eos_token_ids,
            tokenizer.special_ids,
            logits_width,
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        ),
        num_workers=2,  # Each tenant has one turn at a time: a bomb holds up its sender alone.
    )


def serve(core: Core, clients: Clients, ready: Ready) -> None:
    """Step until a ``Shutdown`` comes; block on the sockets while there is nothing to do."""
    while True:
        has_work = False
        for client, message in clients.received(wait=not core.has_unfinished):
            if isinstance(message, Shutdown):
                return
            has_work |= _handle(client, message, core, clients, ready)
        if has_work or core.has_unfinished:
            outputs = core.step()
            orphans = clients.deliver(outputs) if outputs else []
            if orphans:
                core.abort(orphans)


def _handle(
    client: bytes, message: ClientMessage, core: Core, clients: Clients, ready: Ready
) -> bool:
    """Act on a message; True if the core has something to do or to report."""
    match message:
        case GenerateRequest():
            clients.expects(client, message.request_id)
            core.add_request(message)
        case AbortRequest():
            core.abort(message.request_ids, if_waiting=message.if_waiting)
        case ParkRequest():
            core.park(message.request_ids)
        case UnparkRequest():
            core.unpark(message.request_ids)
        case LoadAdapter():
            core.load_adapter(
                message.adapter,
                lambda result: clients.send(client, _answer(message.call_id, result)),
            )
        case UnloadAdapter():
            core.unload_adapter(message.name)
            clients.send(client, AdapterAnswer(call_id=message.call_id))
            return False
        case GrantTokens():
            core.grant(message.grants)
        case Ping():
            clients.send(client, core.stats())
            orphans = clients.probe() if client == OWNER else []
            core.abort(orphans)
            return bool(orphans)
        case Attach():
            clients.send(client, msgspec.structs.replace(ready, epoch=clients.epoch))
            return False
        case BeginEpoch():
            core.abort(clients.begin_epoch(message.epoch))
    return True


def _answer(call_id: int, result: LoadedAdapter | AdapterLoadError) -> AdapterAnswer:
    if isinstance(result, AdapterLoadError):
        return AdapterAnswer(call_id=call_id, error=str(result))
    return AdapterAnswer(
        call_id=call_id, rank=result.rank, digest=result.digest, base_model=result.base_model
    )


def _send(socket: zmq.Socket[bytes], message: EngineMessage) -> None:
    socket.send(encode(message))


def run(launch: Launch, build: Callable[[EngineConfig, OnProgress], Engine]) -> int:
    """Run one engine, whose client listens at ``launch.address``; returns the exit code. Failures
    are sent to the client."""
    context = zmq.Context()
    socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    socket.sndhwm = SEND_HIGH_WATER_MARK
    socket.linger = LINGER_MS
    socket.connect(launch.address)
    with contextlib.ExitStack() as opened:
        opened.callback(context.term)
        opened.callback(socket.close)
        try:
            _send(socket, LoadProgress("Starting", 0.0))
            engine = build(launch.config, lambda progress: _send(socket, progress))
            opened.callback(engine.close)
            tune_collector()
            shared = launch.shared_address
            if launch.curve is not None:
                opened.callback(admit_only(context, launch.curve).stop)
            attached = None if shared is None else listen(context, shared, launch.curve)
            clients = Clients(socket, attached, epoch=launch.epoch)
            opened.callback(clients.close)
            ready = msgspec.structs.replace(
                engine.ready, epoch=launch.epoch, follows_kill=launch.follows_kill
            )
            _send(socket, ready)
            engine.warm_up()
            serve(engine.core, clients, ready)
        except Exception as error:
            # Before the engine is closed, which may take as long as a grammar is being compiled.
            _send(socket, _failure(error))
            return 1
    return 0


def _failure(error: Exception) -> Failed:
    match error:
        case ConfigError():
            return Failed(str(error), "config")
        case ModelLoadError():
            return Failed(str(error), "model")
        case EngineError():
            return Failed(str(error))
    logger.error("the engine failed", exc_info=error)
    line = " ".join(str(error).split())
    return Failed(f"the engine failed: {type(error).__name__}: {line}")


def _die_with_the_client() -> None:
    """Exit when the client is gone, however it ended: it holds the other end of stdin."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="client-watch", daemon=True).start()
    if sys.platform == "linux":
        # The kernel's signal also reaches an engine that is stopped or deadlocked.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_for(_lost: str) -> None:
    """End at once: the main thread may be waiting in a collective for the rank that is lost."""
    logging.shutdown()
    os._exit(1)


_build_for_clients = partial(build_engine, on_lost=_end_for)


def main(build: Callable[[EngineConfig, OnProgress], Engine] = _build_for_clients) -> int:
    # The client decides when the engine stops: systemd sends SIGTERM to every process of a service
    # at once, and the streams that run may still end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(format="engine: %(levelname)s: %(message)s", level=logging.INFO)
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=Launch)
    _die_with_the_client()
    return run(launch, build)


def _end(code: int) -> NoReturn:
    """Exit without the teardown of Python and of libraries, which takes time and reports leaks of
    their own. What is ours is closed by now, and the operating system frees the rest."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main())
