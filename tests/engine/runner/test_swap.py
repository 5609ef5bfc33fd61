"""Requests that wait in host memory go on as if nothing had happened."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.messages import GenerateRequest
from engine.runner import TorchRunner, load_runner
from engine.runner.swap import HostBlocks, _Lane, load_host_blocks
from engine.sampling_params import SamplingParams
from tests.engine.runner.test_runner import prompt

Greedy = Callable[[list[int], int], list[int]]
DEVICES = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], scope="module"
)


def kv_cache(device: str, num_blocks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two layers of unequal width; each block holds numbers of its own."""
    memory = []
    for width in (3, 8):
        k = torch.arange(num_blocks * 2 * width, dtype=torch.float32).view(num_blocks, 2, 1, width)
        memory.append((k.to(device), (k + 0.5).to(device)))
    return memory


def settle() -> None:
    """Until no step uses the blocks any more."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def snapshot(cache: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    return [tensor.clone() for pair in cache for tensor in pair]


@DEVICES
def test_blocks_come_back_as_they_went(device: str) -> None:
    cache = kv_cache(device, 12)
    before = snapshot(cache)
    host = HostBlocks(cache, 9)
    rng = random.Random(0)
    blocks, places = rng.sample(range(12), 9), rng.sample(range(9), 9)
    event = host.copy_out(list(zip(blocks, places, strict=True)))
    if event is not None:
        event.synchronize()
    for pair in cache:
        for tensor in pair:
            tensor.zero_()
    settle()
    targets = rng.sample(range(12), 9)
    host.copy_in(list(zip(targets, places, strict=True)))
    for then, now in zip(before, snapshot(cache), strict=True):
        for source, target in zip(blocks, targets, strict=True):
            assert torch.equal(then[source], now[target])
        for block_id in set(range(12)) - set(targets):
            assert not now[block_id].any(), "a block was written that nobody asked for"


@DEVICES
def test_more_blocks_than_the_buffer_holds(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = kv_cache(device, 7)
    before = snapshot(cache)
    monkeypatch.setattr("engine.runner.swap._STAGING_BYTES", 2 * 4 * 2 * (3 + 8) * 2)
    host = HostBlocks(cache, 7)
    pairs = [(i, 6 - i) for i in range(7)]
    event = host.copy_out(pairs)
    if event is not None:
        event.synchronize()
    for pair in cache:
        for tensor in pair:
            tensor.fill_(-1)
    settle()
    host.copy_in(pairs)
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(cache), strict=True))


@DEVICES
def test_measuring_leaves_the_cache_as_it_was(device: str) -> None:
    cache = kv_cache(device, 4)
    before = snapshot(cache)
    assert 0 < HostBlocks(cache, 30).s_per_block < 1
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(cache), strict=True))


class Stream:
    """What a lane and a test ask of a CUDA stream."""

    device = torch.device("cuda")

    def __init__(self) -> None:
        self.waits_for: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waits_for.append(other)


def test_a_lane_waits_for_the_stream_that_it_is_entered_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for its own, which is the current one inside."""
    steps, lane = Stream(), _Lane(torch.device("cpu"), 1, 16)
    lane.stream = own = Stream()  # type: ignore[assignment]
    current = [steps]

    @contextmanager
    def entered(stream: Stream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    with lane.behind_current():
        assert current[-1] is own
        assert own.waits_for == [steps]
    assert current == [steps]


@pytest.mark.gpu
@pytest.mark.parametrize("direct", [True, False])
def test_blocks_are_copied_out_as_the_steps_before_leave_them(direct: bool) -> None:
    cache = [tuple(torch.zeros(4, 4, 2, 16, device="cuda") for _ in range(2))]
    host = HostBlocks(cache, 4, direct=direct)  # type: ignore[arg-type]
    torch.cuda._sleep(200_000_000)  # a tenth of a second, in which nothing is written yet
    for tensor in cache[0]:
        tensor.fill_(7)
    event = host.copy_out([(i, i) for i in range(4)])
    assert event is not None
    event.synchronize()
    assert (host._host.view(torch.float32) == 7).all()


class TestSwapSpace:
    def test_gib_become_blocks(self) -> None:
        cache = kv_cache("cpu", 4)
        block_bytes = 2 * 2 * (3 + 8) * 4
        host = load_host_blocks(5.5 * block_bytes / (1 << 30), cache)
        assert host is not None
        assert host.num_blocks == 5
        assert host.block_bytes == block_bytes

    def test_zero_is_none_and_so_is_the_default_on_a_cpu(self) -> None:
        assert load_host_blocks(0, kv_cache("cpu", 4)) is None
        assert load_host_blocks(None, kv_cache("cpu", 4)) is None

    @pytest.mark.gpu
    def test_by_default_a_gpu_gets_no_more_than_it_has_itself(self) -> None:
        host = load_host_blocks(None, kv_cache("cuda", 4))
        assert host is not None
        assert host.num_blocks == 4

    def test_too_little_for_one_block_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="swap_space = 1e-09 GiB holds no block of 176 bytes"):
            load_host_blocks(1e-9, kv_cache("cpu", 4))

    def test_a_negative_size_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="swap_space must be at least 0"):
            EngineConfig(model="any", swap_space=-1)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def crowded(request: pytest.FixtureRequest, tiny_config: EngineConfig) -> TorchRunner:
    """Room for three requests of the test below; float32, so that outputs are exact."""
    config = msgspec.structs.replace(
        tiny_config,
        device=request.param,
        dtype="float32",
        num_gpu_blocks_override=60,
        max_model_len=160,
        swap_space=0.01,
    )
    return load_runner(config)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_swapped_requests_generate_what_they_do_alone(
    crowded: TorchRunner, tiny_config: EngineConfig, greedy: Greedy, overlap: bool, caching: bool
) -> None:
    crowded._blocks.host.s_per_block = 0.0  # type: ignore[union-attr]  # whatever it measured
    config = msgspec.structs.replace(
        tiny_config,
        enable_prefix_caching=caching,
        forecast_admission=False,
        max_num_batched_tokens=64,
        watermark=0.0,
        async_scheduling=overlap,
    )
    core = EngineCore(config, crowded, max_model_len=160)
    prompts = [prompt(seed, 20 + 7 * seed) for seed in range(8)]
    outputs: dict[str, list[int]] = {}
    for i, tokens in enumerate(prompts):
        outputs[str(i)] = []
        params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        core.add_request(GenerateRequest(request_id=str(i), prompt_token_ids=tokens, params=params))
    while core.has_unfinished:
        for output in core.step():
            assert output.error is None
            outputs[output.request_id] += output.new_token_ids
    core.check_integrity()
    stats = core.stats()
    assert stats.swapped_in_blocks > 0, "nothing was swapped"
    assert stats.recomputed_tokens == 0
    for i, tokens in enumerate(prompts):
        assert outputs[str(i)] == greedy(tokens, 40), f"request {i}"


def test_without_swap_space_there_is_none(tiny_dir: Path, tiny_config: EngineConfig) -> None:
    runner = load_runner(tiny_config)
    assert runner.num_swap_blocks == 0
    assert runner.swap_s_per_block == 0.0
