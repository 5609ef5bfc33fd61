from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from engine.client.client import EngineClient
from engine.client.stream import RequestStream
from engine.client.transport import Launch
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineDead, ModelLoadError
from engine.messages import (
    AbortRequest,
    AdapterAnswer,
    AdapterRef,
    ClientMessage,
    EngineMessage,
    Failed,
    GenerateRequest,
    LoadAdapter,
    LoadProgress,
    Ping,
    Ready,
    RequestOutput,
    Shutdown,
    Stats,
    StepOutputs,
    UnloadAdapter,
    decode_engine_message,
    encode,
)
from engine.process import Engine, OnProgress, run, serve
from engine.sampling_params import SamplingParams, StructuredOutputs
from engine.sockets import Clients
from engine.text.tokenizer import Tokenizer
from tests.engine import toys
from tests.engine.stand_in import StandInCore, build, expected_tokens

CONFIG = EngineConfig(model="ok", max_num_seqs=8)


class Server:
    """``serve`` in a thread, at the other end of a pair of sockets."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.core = StandInCore(CONFIG)
        self.socket = context.socket(zmq.PAIR)
        self.socket.rcvtimeo = 5000
        self.socket.linger = 0
        self.socket.bind("inproc://engine")
        self._theirs = context.socket(zmq.PAIR)
        self._theirs.connect("inproc://engine")
        ready = build(CONFIG, lambda _progress: None).ready
        self.thread = threading.Thread(target=serve, args=(self.core, Clients(self._theirs), ready))
        self.thread.start()

    def send(self, *messages: ClientMessage) -> None:
        for message in messages:
            self.socket.send(encode(message))

    def receive(self) -> EngineMessage:
        return decode_engine_message(self.socket.recv())

    def close(self) -> None:
        self.send(Shutdown())
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.socket.close()
        self._theirs.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with zmq.Context() as context:
        server = Server(context)
        yield server
        server.close()


def request(request_id: str, max_tokens: int) -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=[1, 2],
        params=SamplingParams(max_tokens=max_tokens),
    )


def test_one_message_a_step_for_all_requests(server: Server) -> None:
    both_sent, step = threading.Event(), server.core.step

    def step_with_both() -> list[RequestOutput]:
        both_sent.wait()
        return step()

    server.core.step = step_with_both  # type: ignore[method-assign]
    server.send(request("a", 50), request("b", 50))
    both_sent.set()
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    together = 0
    while sum(map(len, tokens.values())) < 100:
        message = server.receive()
        assert isinstance(message, StepOutputs)
        together += len(message.outputs) == 2
        for output in message.outputs:
            assert len(output.new_token_ids) == 1
            tokens[output.request_id] += output.new_token_ids
    assert tokens == dict.fromkeys("ab", expected_tokens([1, 2], 50))
    assert together > 40


def test_a_ping_is_answered_idle_and_between_steps(server: Server) -> None:
    server.send(Ping())
    assert server.receive() == server.core.stats()
    server.send(request("a", 1 << 30), Ping())
    while not isinstance(message := server.receive(), Stats):
        pass
    assert message.num_running + message.num_waiting == 1


def test_an_abort_is_answered_even_when_nothing_else_runs(server: Server) -> None:
    server.send(request("a", 1 << 30), AbortRequest(["a", "unknown"]))
    while True:
        message = server.receive()
        assert isinstance(message, StepOutputs)
        if message.outputs[0].finish_reason is not None:
            break
    assert [(o.request_id, o.finish_reason) for o in message.outputs] == [("a", "abort")]
    assert not server.core.has_unfinished


def test_loading_an_adapter_is_answered_when_it_is_done(server: Server) -> None:
    refs = [AdapterRef(name=path, path=path) for path in ("late", "good", "bad")]
    server.send(*(LoadAdapter(index, ref) for index, ref in enumerate(refs)))
    server.send(UnloadAdapter(3, "good"))
    answers = [server.receive() for _ in range(4)]
    loaded = {"rank": 8, "digest": "digest", "base_model": "some/base"}
    assert sorted(answers, key=lambda answer: answer.call_id) == [  # type: ignore[union-attr]
        AdapterAnswer(call_id=0, **loaded),  # type: ignore[arg-type]
        AdapterAnswer(call_id=1, **loaded),  # type: ignore[arg-type]
        AdapterAnswer(call_id=2, error="bad does not fit"),
        AdapterAnswer(call_id=3),
    ]
    assert (server.core.loads, server.core.unloads) == (refs, ["good"])


def test_it_sleeps_while_there_is_nothing_to_do(server: Server) -> None:
    calls = []
    step = server.core.step
    server.core.step = lambda: calls.append(1) or step()  # type: ignore[method-assign,func-returns-value]
    time.sleep(0.1)
    assert calls == []
    server.send(Ping())
    assert isinstance(server.receive(), Stats)
    assert calls == []


@pytest.mark.usefixtures("collector_as_before")
class TestRun:
    """A whole life, over a real socket, in this process."""

    def live(
        self,
        build: Callable[[EngineConfig, OnProgress], Engine],
        address: str,
        model: str = "ok",
    ) -> tuple[int, list[EngineMessage]]:
        launch = Launch(config=EngineConfig(model=model), address=address)
        with (
            ThreadPoolExecutor(1) as pool,
            zmq.Context() as context,
            context.socket(zmq.PAIR) as socket,
        ):
            socket.linger = 0
            socket.bind(address)
            code = pool.submit(run, launch, build)
            messages: list[EngineMessage] = []
            while not messages or not isinstance(messages[-1], Ready | Failed):
                assert socket.poll(30_000)
                messages.append(decode_engine_message(socket.recv()))
            if isinstance(messages[-1], Ready):
                socket.send(encode(Shutdown()))
            return code.result(30), messages

    @pytest.fixture
    def address(self, tmp_path_factory: pytest.TempPathFactory) -> str:
        return f"ipc://{tmp_path_factory.mktemp('s')}/engine"

    def test_shutdown_is_code_0(self, address: str) -> None:
        code, messages = self.live(build, address)
        assert code == 0
        assert [type(m) for m in messages] == [LoadProgress, LoadProgress, Ready]

    @pytest.mark.parametrize(
        ("error", "failed"),
        [
            (ConfigError("block_size is odd"), Failed("block_size is odd", "config")),
            (ModelLoadError("no such folder"), Failed("no such folder", "model")),
            (EngineDead("gone"), Failed("gone", "internal")),
            (
                ValueError("two\n  lines"),
                Failed("the engine failed: ValueError: two lines", "internal"),
            ),
        ],
    )
    def test_a_failure_is_one_line_and_code_1(
        self, address: str, error: Exception, failed: Failed
    ) -> None:
        def build(config: EngineConfig, on_progress: OnProgress) -> Engine:
            raise error

        code, messages = self.live(build, address)
        assert code == 1
        assert messages == [LoadProgress("Starting", 0.0), failed]

    def test_the_client_hears_of_a_failure_before_the_engine_is_closed(self, address: str) -> None:
        heard = threading.Event()

        def failing(config: EngineConfig, on_progress: OnProgress) -> Engine:
            def warm_up() -> None:
                raise EngineDead("gone")

            def close() -> None:
                assert heard.wait(30)

            made = build(config, on_progress)
            return msgspec.structs.replace(made, warm_up=warm_up, close=close)

        launch = Launch(config=EngineConfig(model="ok"), address=address)
        with zmq.Context() as context, ThreadPoolExecutor() as pool:
            socket = context.socket(zmq.PAIR)
            socket.linger = 0
            socket.bind(address)
            code = pool.submit(run, launch, failing)
            message: EngineMessage = LoadProgress("", 0.0)
            while not isinstance(message, Failed):
                assert socket.poll(10_000), "nothing is said while the engine closes"
                message = decode_engine_message(socket.recv())
            heard.set()
            assert code.result(30) == 1
            socket.close()


@pytest.mark.asyncio
async def test_the_real_engine_through_the_client(tmp_path: Path) -> None:
    """Generate, follow a grammar, abort, die by ``kill -9``, and generate the same again."""
    config = EngineConfig(
        model=str(toys.write_llama(tmp_path, max_position_embeddings=4096)),
        num_gpu_blocks_override=256,
        num_threads=1,
    )
    client = EngineClient(config)
    await client.start()
    try:
        tokens = await generate(client, "a", SamplingParams(temperature=0.0, max_tokens=20))
        choice = StructuredOutputs(choice=("the cat", "naïve"))
        params = SamplingParams(temperature=0.0, max_tokens=40, structured_outputs=choice)
        text = Tokenizer.load(tmp_path).decode(await generate(client, "b", params))
        assert text in ("the cat", "naïve")

        endless = SamplingParams(max_tokens=4000, ignore_eos=True)
        stream = client.submit(prompted("c", endless))
        await anext(stream)
        await stream.aclose()
        stats = await client.fetch_stats()
        assert stats.num_free_blocks == stats.num_total_blocks == 256
        assert stream.finish_reason == "abort"

        stream = client.submit(prompted("d", endless))
        await anext(stream)
        os.kill(client.info.pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="SIGKILL"):
            await stream_tokens(stream)
        async with asyncio.timeout(30):
            while not client.ready:  # noqa: ASYNC110 (ready is a property)
                await asyncio.sleep(0.05)
        again = await generate(client, "e", SamplingParams(temperature=0.0, max_tokens=20))
        assert again == tokens
        await generate(client, "f", params)
        processes = psutil.Process(client.info.pid).children(recursive=True)
        assert processes  # that compile grammars
    finally:
        await client.close()
    assert not [process for process in processes if process.is_running()]


def test_its_process_ends_without_a_teardown() -> None:
    code = (
        "import atexit; from engine.process import _end; atexit.register(print, 'torn down');"
        "print('said', end=''); _end(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said", "")


@pytest.mark.asyncio
async def test_a_stalled_reader_of_the_real_engine(tmp_path: Path) -> None:
    """It is parked: no row, no blocks, nobody slowed. When it reads on, it gets every token; when
    it never does, its request ends. With one row the others run only because it gave that up."""
    config = EngineConfig(
        model=str(toys.write_llama(tmp_path, max_position_embeddings=1024)),
        num_gpu_blocks_override=64,
        num_threads=1,
        max_num_seqs=1,
    )
    client = EngineClient(config, max_unread_tokens=8, stall_timeout_s=60.0)
    await client.start()
    try:
        params = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True)
        expected = await generate(client, "alone", params)
        stalled = client.submit(prompted("stalled", params))
        tokens = (await anext(stalled)).new_token_ids
        assert await generate(client, "other", params) == expected
        stats = await client.fetch_stats()
        assert (stats.num_parked, stats.num_running) == (1, 0)
        assert stats.num_free_blocks == stats.num_total_blocks
        assert stalled.num_generated_tokens < 500
        assert tokens + await stream_tokens(stalled) == expected

        client._stall_timeout_s = 0.5
        gone = client.submit(prompted("gone", params))
        async with asyncio.timeout(30):
            while gone.finish_reason is None:  # noqa: ASYNC110 (an attribute)
                await asyncio.sleep(0.05)
        assert gone.abandoned
        assert (await client.fetch_stats()).num_parked == 0
        assert await generate(client, "after", params) == expected
    finally:
        await client.close()


def prompted(request_id: str, params: SamplingParams) -> GenerateRequest:
    return GenerateRequest(request_id=request_id, prompt_token_ids=[5, 6, 7], params=params)


async def stream_tokens(stream: RequestStream) -> list[int]:
    return [token async for output in stream for token in output.new_token_ids]


async def generate(client: EngineClient, request_id: str, params: SamplingParams) -> list[int]:
    stream = client.submit(prompted(request_id, params))
    tokens = await stream_tokens(stream)
    assert stream.finish_reason in ("stop", "length")
    assert stream.num_generated_tokens == len(tokens) > 0
    return tokens
