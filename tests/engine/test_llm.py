from __future__ import annotations

import dataclasses
import gc
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import tokenizers
import torch
import transformers

from engine import garbage
from engine.errors import ConfigError, EngineError, InvalidRequest, ModelLoadError, QueueFull
from engine.llm import (
    LLM,
    CompletionOutput,
    GenerationOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputs,
    TokensPrompt,
)
from engine.messages import LoadProgress, RequestOutput
from engine.scheduler.plan import StepPlan
from tests.engine import toys
from tests.engine.insides import core_of, runner_of

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPTS = ["the cat sat", "naïve café on the mat", "你好", "a"]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def shared(model_dir: Path) -> LLM:
    return LLM(model_dir, num_gpu_blocks_override=64, num_threads=1)


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    """Idle before and after every test."""
    assert not shared._core.has_unfinished
    yield shared
    assert not shared._core.has_unfinished
    stats = shared._core.stats()
    assert stats.num_free_blocks == stats.num_total_blocks


@pytest.fixture(scope="module")
def early(model_dir: Path) -> LLM:
    """Its steps have few tokens, and return while the device computes them."""
    return LLM(
        model_dir,
        num_gpu_blocks_override=64,
        num_threads=1,
        max_num_batched_tokens=16,
        async_scheduling=True,
    )


def text_of(result: GenerationOutput) -> str:
    return result.outputs[0].text


class TestGenerate:
    def test_greedy_equals_transformers(self, llm: LLM, model_dir: Path) -> None:
        model = transformers.LlamaForCausalLM.from_pretrained(model_dir).eval()
        results = llm.generate(PROMPTS, GREEDY)
        for prompt, result in zip(PROMPTS, results, strict=True):
            ids = llm.get_tokenizer().encode(prompt)
            with torch.inference_mode():
                expected = model.generate(
                    torch.tensor([ids]),
                    attention_mask=torch.ones(1, len(ids)),
                    max_new_tokens=24,
                    min_new_tokens=24,
                    do_sample=False,
                    pad_token_id=0,
                )
            (completion,) = result.outputs
            # transformers forbids EOS until min_new_tokens; equal as far as EOS does not come up.
            assert completion.token_ids == expected[0, len(ids) :].tolist()
            assert (result.prompt, result.prompt_token_ids) == (prompt, ids)
            assert completion.text == llm.get_tokenizer().decode(completion.token_ids)
            assert (completion.finish_reason, completion.stop_reason) == ("length", None)

    def test_one_prompt_token_ids_and_default_params(self, llm: LLM) -> None:
        ids = llm.get_tokenizer().encode("the cat")
        (result,) = llm.generate({"prompt_token_ids": ids})
        assert result.prompt is None
        assert result.prompt_token_ids == ids
        assert 1 <= len(result.outputs[0].token_ids) <= 16
        assert len(llm.generate("the cat")) == 1

    def test_texts_and_token_ids_in_one_call(self, llm: LLM) -> None:
        texts = ["the cat", "你好"]
        first, second = map(llm.get_tokenizer().encode, texts)
        results = llm.generate([texts[0], {"prompt_token_ids": [7, 8]}, texts[1]], GREEDY)
        assert [r.prompt for r in results] == [texts[0], None, texts[1]]
        assert [r.prompt_token_ids for r in results] == [first, [7, 8], second]

    def test_params_per_prompt_and_callbacks(self, llm: LLM) -> None:
        done: list[str] = []
        params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (9, 3, 6)]
        results = llm.generate(
            PROMPTS[:3], params, on_output=lambda result: done.append(result.request_id)
        )
        assert [len(r.outputs[0].token_ids) for r in results] == [9, 3, 6]
        assert done == [results[i].request_id for i in (1, 2, 0)]
        with pytest.raises(InvalidRequest, match="3 sampling_params for 2 prompts"):
            llm.generate(PROMPTS[:2], params)

    def test_a_prefix_is_served_from_the_cache(self, llm: LLM) -> None:
        prompt = TokensPrompt(prompt_token_ids=list(range(5, 55)))
        first = llm.generate(prompt, GREEDY)[0]
        again = llm.generate(prompt, GREEDY)[0]
        assert again.outputs == first.outputs
        assert again.num_cached_tokens >= 48

    def test_no_prompts(self, llm: LLM) -> None:
        assert llm.generate([], GREEDY) == []

    def test_holds_full_collections_back(self, llm: LLM) -> None:
        before = gc.get_threshold()
        meanwhile = []
        llm.generate("a", GREEDY, on_output=lambda _: meanwhile.append(gc.get_threshold()))
        assert meanwhile == [(*before[:2], garbage.FULL_THRESHOLD)]
        assert gc.get_threshold() == before


class TestHeadStart:
    """With overlap the device computes the first step while further prompts are submitted."""

    def prompts(self, *lengths: int) -> list[TokensPrompt]:
        return [{"prompt_token_ids": [5 + i] * n} for i, n in enumerate(lengths)]

    def test_as_many_as_fill_a_step_go_first(
        self, early: LLM, llm: LLM, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prompts = self.prompts(9, 7, 5, 3)
        known: list[int] = []
        step = early._core.step

        def watched() -> list[RequestOutput]:
            known.append(early.stats().num_waiting)
            return step()

        monkeypatch.setattr(early._core, "step", watched)
        results = early.generate(prompts, GREEDY)
        assert known[0] == 2
        assert known[1] == 2, "the other two"
        assert [r.outputs for r in results] == [r.outputs for r in llm.generate(prompts, GREEDY)]
        known.clear()
        early.generate(prompts[2:], GREEDY)
        assert known[0] == 2, "all, where none fill a step"

    def test_without_overlap_all_go_first(
        self, model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        llm = LLM(model_dir, max_num_batched_tokens=16, async_scheduling=False, num_threads=1)
        known: list[int] = []
        step = llm._core.step

        def watched() -> list[RequestOutput]:
            known.append(llm.stats().num_waiting)
            return step()

        monkeypatch.setattr(llm._core, "step", watched)
        llm.generate(self.prompts(*[9] * 12), SamplingParams(max_tokens=1))
        assert known[0] == 12

    def test_branches_of_a_prompt_are_not_parted(self, early: LLM) -> None:
        params = SamplingParams(n=4, seed=5, max_tokens=6, ignore_eos=True)
        (result, other) = early.generate(self.prompts(40, 3), params)
        assert [len(c.token_ids) for c in result.outputs + other.outputs] == [6] * 8

    def test_a_late_prompt_is_refused_before_the_first_result(self, early: LLM) -> None:
        bad: TokensPrompt = {"prompt_token_ids": [-1]}
        stream = early.stream([*self.prompts(2, 16), bad], GREEDY)
        with pytest.raises(InvalidRequest, match="prompt_token_ids must be in"):
            next(stream)
        core_of(early).check_integrity()
        assert not early._core.has_unfinished


class TestStopping:
    def test_stop_string(self, llm: LLM) -> None:
        whole = llm.generate("the cat", GREEDY)[0].outputs[0]
        stop = whole.text[4:7]
        for include in (False, True):
            params = SamplingParams(
                temperature=0.0,
                max_tokens=24,
                ignore_eos=True,
                stop=(stop,),
                include_stop_str_in_output=include,
            )
            cut = llm.generate("the cat", params)[0].outputs[0]
            end = whole.text.index(stop) + len(stop) * include
            assert cut.text == whole.text[:end]
            assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
            assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]

    def test_stop_token(self, llm: LLM) -> None:
        whole = llm.generate("the cat", GREEDY)[0].outputs[0]
        stop = whole.token_ids[5]
        params = SamplingParams(
            temperature=0.0, max_tokens=24, ignore_eos=True, stop_token_ids=(stop,)
        )
        cut = llm.generate("the cat", params)[0].outputs[0]
        end = whole.token_ids.index(stop) + 1
        assert cut.token_ids == whole.token_ids[:end]
        assert cut.text == llm.get_tokenizer().decode(cut.token_ids[:-1])
        assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


class TestSteering:
    def greedy(self, llm: LLM, **options: Any) -> CompletionOutput:
        how = msgspec.structs.replace(GREEDY, **options)
        return llm.generate("the cat", how)[0].outputs[0]

    def test_bad_words(self, llm: LLM) -> None:
        word = self.greedy(llm).text[2:5]
        assert word not in self.greedy(llm, bad_words=[word]).text

    def test_allowed_token_ids_and_logit_bias(self, llm: LLM) -> None:
        free = self.greedy(llm).token_ids
        assert set(self.greedy(llm, allowed_token_ids=[70, 71, 72]).token_ids) <= {70, 71, 72}
        assert self.greedy(llm, logit_bias={free[0]: -100.0}).token_ids[0] != free[0]
        assert self.greedy(llm, logit_bias={99: 100.0}).token_ids == [99] * 24

    def test_penalties(self, llm: LLM) -> None:
        repeated = self.greedy(llm, logit_bias={99: 5.0, 98: 5.0}).token_ids
        assert repeated.count(99) + repeated.count(98) > 12
        varied = self.greedy(llm, logit_bias={99: 5.0, 98: 5.0}, frequency_penalty=2.0).token_ids
        assert varied.count(99) + varied.count(98) < 12
        once = self.greedy(llm, repetition_penalty=1e6).token_ids
        prompt = llm.get_tokenizer().encode("the cat")
        assert len({*once, *prompt}) == len(once) + len(set(prompt))


class TestBranches:
    HOW = SamplingParams(n=4, seed=5, max_tokens=12, ignore_eos=True, logprobs=0, prompt_logprobs=1)

    def test_each_is_drawn_by_itself(self, llm: LLM) -> None:
        result, other = llm.generate(["the cat sat", "naïve"], self.HOW)
        assert [completion.index for completion in result.outputs] == [0, 1, 2, 3]
        assert len({tuple(completion.token_ids) for completion in result.outputs}) == 4
        for i, completion in enumerate(result.outputs):
            params = SamplingParams(seed=5 + i, max_tokens=12, ignore_eos=True)
            (alone,) = llm.generate("the cat sat", params)[0].outputs
            assert completion.token_ids == alone.token_ids
            assert completion.text == alone.text
            assert len(completion.logprobs or ()) == 12
        assert len(result.prompt_logprobs or ()) == len(result.prompt_token_ids)
        assert result.finished
        assert len(other.outputs) == 4

    def test_without_a_seed_they_differ_too(self, llm: LLM) -> None:
        (result,) = llm.generate("the cat", SamplingParams(n=3, max_tokens=12, ignore_eos=True))
        assert len({tuple(completion.token_ids) for completion in result.outputs}) == 3

    def test_one_may_end_before_the_others(self, llm: LLM) -> None:
        whole = llm.generate("the cat sat", self.HOW)[0].outputs
        stop = whole[2].token_ids[3]
        params = msgspec.structs.replace(self.HOW, stop_token_ids=(stop,))
        for cut, full in zip(llm.generate("the cat sat", params)[0].outputs, whole, strict=True):
            end = full.token_ids.index(stop) + 1 if stop in full.token_ids else 12
            assert cut.token_ids == full.token_ids[:end]


class TestStream:
    HOW = SamplingParams(n=2, seed=5, max_tokens=12, ignore_eos=True, logprobs=1, prompt_logprobs=0)

    def read(self, llm: LLM, kind: RequestOutputKind, **options: Any) -> list[GenerationOutput]:
        params = msgspec.structs.replace(self.HOW, output_kind=kind, **options)
        return list(llm.stream(["the cat sat", "你好"], params))

    def expected(self, llm: LLM) -> list[GenerationOutput]:
        results = llm.generate(["the cat sat", "你好"], self.HOW)
        return [dataclasses.replace(result, request_id="") for result in results]

    def by_prompt(self, results: list[GenerationOutput]) -> list[list[GenerationOutput]]:
        assert {result.prompt for result in results} == {"the cat sat", "你好"}
        return [[r for r in results if r.prompt == prompt] for prompt in ("the cat sat", "你好")]

    def test_final_only(self, llm: LLM) -> None:
        results = self.read(llm, RequestOutputKind.FINAL_ONLY)
        found = [dataclasses.replace(r, request_id="") for (r,) in self.by_prompt(results)]
        assert found == self.expected(llm)

    def test_cumulative(self, llm: LLM) -> None:
        results = self.read(llm, RequestOutputKind.CUMULATIVE)
        for growing, whole in zip(self.by_prompt(results), self.expected(llm), strict=True):
            assert [r.finished for r in growing] == [False] * 23 + [True]
            assert growing[-1].prompt_logprobs == whole.prompt_logprobs
            for index, last in enumerate(whole.outputs):
                states = [r.outputs[0] for r in growing if r.outputs[0].index == index]
                assert [len(s.token_ids) for s in states] == list(range(1, 13))
                assert [s.logprobs for s in states] == [
                    (last.logprobs or [])[:n] for n in range(1, 13)
                ]
                assert all(last.text.startswith(s.text) for s in states)
                assert states[-1] == last

    def test_delta(self, llm: LLM) -> None:
        results = self.read(llm, RequestOutputKind.DELTA)
        for deltas, whole in zip(self.by_prompt(results), self.expected(llm), strict=True):
            for index, last in enumerate(whole.outputs):
                parts = [r.outputs[0] for r in deltas if r.outputs[0].index == index]
                assert [t for part in parts for t in part.token_ids] == last.token_ids
                assert "".join(part.text for part in parts) == last.text
                assert [e for part in parts for e in part.logprobs or ()] == last.logprobs
                reasons = [part.finish_reason for part in parts]
                assert reasons == [None] * 11 + ["length"]

    def test_a_stop_string_across_tokens(self, llm: LLM) -> None:
        whole = llm.generate("the cat", GREEDY)[0].outputs[0].text
        stop = whole[3:9]
        params = msgspec.structs.replace(GREEDY, stop=stop, output_kind=RequestOutputKind.DELTA)
        parts = [result.outputs[0] for result in llm.stream("the cat", params)]
        assert len(llm.get_tokenizer().encode(stop)) > 1
        assert "".join(part.text for part in parts) == whole[: whole.index(stop)]
        assert (parts[-1].finish_reason, parts[-1].stop_reason) == ("stop", stop)

    def test_closing_it_ends_the_work(self, llm: LLM) -> None:
        params = msgspec.structs.replace(self.HOW, max_tokens=200)
        stream = llm.stream("the cat sat", params)
        next(stream)
        with pytest.raises(EngineError, match="a stream of this LLM is still open"):
            llm.generate("the cat", GREEDY)
        stream.close()
        assert len(llm.generate("the cat", GREEDY)) == 1

    def test_a_bad_prompt_is_refused_before_the_first_result(self, llm: LLM) -> None:
        with pytest.raises(InvalidRequest, match="is empty"):
            llm.stream("", GREEDY)


def test_skip_special_tokens(llm: LLM) -> None:
    how = msgspec.structs.replace(GREEDY, logit_bias={1: 100.0}, max_tokens=2)
    assert text_of(llm.generate("a", how)[0]) == ""
    how = msgspec.structs.replace(how, skip_special_tokens=False)
    assert text_of(llm.generate("a", how)[0]) == "<s><s>"


def test_a_stop_token_is_text_only_if_it_is_to_be_included(llm: LLM) -> None:
    how = msgspec.structs.replace(GREEDY, logit_bias={70: 100.0}, stop_token_ids=(70,))
    assert text_of(llm.generate("a", how)[0]) == ""
    how = msgspec.structs.replace(how, include_stop_str_in_output=True)
    assert text_of(llm.generate("a", how)[0]) == llm.get_tokenizer().decode([70])


def test_the_names_of_vllm(model_dir: Path) -> None:
    named = LLM(
        model=str(model_dir),
        device="cpu",
        dtype="float32",
        load_format="auto",
        seed=3,
        skip_tokenizer_init=True,
        max_model_len=64,
        block_size=8,
        num_gpu_blocks_override=32,
        gpu_memory_utilization=0.5,
        kv_cache_memory_bytes=1 << 20,
        enable_prefix_caching=False,
        enforce_eager=True,
        max_num_batched_tokens=16,
        max_num_seqs=4,
        long_prefill_token_threshold=8,
        async_scheduling=True,
        max_logprobs=5,
    )
    assert (named.info.max_model_len, named.info.block_size, named.info.num_blocks) == (64, 8, 32)
    prompt: TokensPrompt = {"prompt_token_ids": list(range(5, 35))}
    first, again = (named.generate(prompt, GREEDY)[0] for _ in range(2))
    assert first.outputs == again.outputs
    assert again.num_cached_tokens == 0
    with pytest.raises(InvalidRequest, match="max_logprobs allows at most 5"):
        named.generate(prompt, SamplingParams(logprobs=6))


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompt", "params", "message"),
        [
            ("", GREEDY, "is empty"),
            ({"prompt_token_ids": [3] * 256}, GREEDY, "max_model_len = 256"),
            ({"prompt_token_ids": [3] * 250}, GREEDY, "max_tokens is 24"),
            ({"prompt_token_ids": [-1]}, GREEDY, "prompt_token_ids must be in"),
            ({"prompt_token_ids": ["a"]}, GREEDY, "prompt_token_ids must hold integers"),
            ({"prompt_token_ids": [1.5]}, GREEDY, "prompt_token_ids must hold integers"),
            ({"prompt_token_ids": "abc"}, GREEDY, "prompt_token_ids must hold integers"),
            ({"token_ids": [1]}, GREEDY, "must be a text, "),
            (5, GREEDY, "must be a text, "),
            ("good", {"temperature": 0}, "must be SamplingParams, got"),
            ("good", None, "must be SamplingParams, got None"),
        ],
    )
    def test_a_bad_prompt_is_named_and_leaves_nothing_behind(
        self, llm: LLM, prompt: object, params: SamplingParams, message: str
    ) -> None:
        with pytest.raises(InvalidRequest, match=message):
            llm.generate(["good", prompt, "good"], [GREEDY, params, GREEDY])  # type: ignore[list-item]
        assert len(llm.generate("good", GREEDY)[0].outputs[0].token_ids) == 24

    def test_what_is_too_much_for_the_queue(self, model_dir: Path) -> None:
        llm = LLM(model_dir, max_num_queued_reqs=2)
        with pytest.raises(QueueFull, match="max_num_queued_reqs = 2"):
            llm.generate(["good"] * 3, GREEDY)
        assert len(llm.generate(["good"] * 2, GREEDY)) == 2

    def test_ctrl_c_in_the_middle_of_a_step_leaves_nothing_behind(
        self, llm: LLM, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = llm.generate("good", GREEDY)[0].outputs
        runner = runner_of(llm)
        forward = runner.forward

        def interrupted(plan: StepPlan) -> None:
            signal.raise_signal(signal.SIGINT)
            forward(plan)

        monkeypatch.setattr(runner, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("good", GREEDY)
        monkeypatch.undo()
        core_of(llm).check_integrity()
        assert llm.generate("good", GREEDY)[0].outputs == whole

    def test_a_broken_step_is_not_taken_for_an_open_stream(
        self, model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        llm = LLM(model_dir)
        # Between the two halves of a step: nothing can go on from there.
        runner = runner_of(llm)
        monkeypatch.setattr(runner, "sample", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            llm.generate("good", GREEDY)
        with pytest.raises(EngineError, match="make a new LLM"):
            llm.generate("good", GREEDY)

    def test_an_interrupt_leaves_nothing_behind(self, llm: LLM) -> None:
        def interrupt(result: GenerationOutput) -> None:
            raise KeyboardInterrupt

        params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (2, 100)]
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS[:2], params, on_output=interrupt)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"max_model_length": 5}, "max_model_length is unknown; did you mean max_model_len"),
            ({"block_size": 0}, "block_size must be at least 1"),
            ({"block_size": "16"}, "block_size: Expected `int`, got `str`"),
            ({"dtype": "fp8"}, "dtype: Invalid enum value 'fp8'; use one of auto, bfloat16"),
        ],
    )
    def test_a_bad_option_is_named(
        self, model_dir: Path, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            LLM(model_dir, **options)

    def test_a_bad_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match=str(tmp_path)):
            LLM(tmp_path)


class TestChat:
    MESSAGES = [{"role": "user", "content": "the cat"}]  # noqa: RUF012

    def test_renders_the_template(self, llm: LLM) -> None:
        (result,) = llm.chat(self.MESSAGES, GREEDY)
        assert result.prompt == "<s><|user|>the cat\n<|assistant|>"
        assert result.prompt_token_ids.count(1) == 1
        assert result.outputs == llm.generate(result.prompt, GREEDY)[0].outputs

    def test_several_conversations(self, llm: LLM) -> None:
        results = llm.chat([self.MESSAGES, self.MESSAGES], GREEDY, add_generation_prompt=False)
        assert [result.prompt for result in results] == ["<s><|user|>the cat\n"] * 2


def test_without_a_tokenizer(model_dir: Path) -> None:
    progress: list[LoadProgress] = []
    llm = LLM(
        model_dir,
        skip_tokenizer_init=True,
        num_gpu_blocks_override=16,
        num_threads=1,
        on_progress=progress.append,
    )
    assert progress
    assert progress[-1].fraction == 1.0
    (result,) = llm.generate({"prompt_token_ids": [5, 6]}, GREEDY)
    assert len(result.outputs[0].token_ids) == 24
    assert text_of(result) == ""
    with pytest.raises(ConfigError, match="skip_tokenizer_init"):
        llm.generate("text")
    with pytest.raises(InvalidRequest, match="bad_words need the tokenizer"):
        llm.generate({"prompt_token_ids": [5]}, SamplingParams(bad_words=("x",)))
    with pytest.raises(InvalidRequest, match="stop strings need the tokenizer"):
        llm.generate({"prompt_token_ids": [5]}, SamplingParams(stop=("x",)))


def test_a_tokenizer_may_have_tokens_that_the_model_has_not(
    model_dir: Path, tmp_path: Path
) -> None:
    """Checkpoints to which somebody added a padding token, and random ones with the EOS of the
    model that their config was copied from."""
    folder = shutil.copytree(model_dir, tmp_path / "model")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    width = msgspec.json.decode((folder / "config.json").read_bytes())["vocab_size"]
    tokenizer.add_special_tokens([f"<pad-{i}>" for i in range(width)])
    tokenizer.save(str(folder / "tokenizer.json"))
    choice = SamplingParams(structured_outputs=StructuredOutputs(choice=("the cat",)))

    llm = LLM(folder, num_gpu_blocks_override=64, num_threads=1)
    assert text_of(llm.generate("the", choice)[0]) == "the cat"
    with pytest.raises(InvalidRequest, match=rf"must be in \[0, {width}\)"):
        llm.generate(f"<pad-{width - 1}>", GREEDY)

    (folder / "generation_config.json").write_text('{"eos_token_id": 50256}')
    llm = LLM(folder, num_gpu_blocks_override=64, num_threads=1)
    assert len(llm.generate("the", GREEDY)[0].outputs[0].token_ids) == 24
    with pytest.raises(InvalidRequest, match="no token that ends a text"):
        llm.generate("the", choice)


def test_the_models_own_sampling_is_the_default(model_dir: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model_dir, tmp_path / "model")
    stated = {"temperature": 0.5, "top_k": 7, "repetition_penalty": 1.1, "max_new_tokens": 3}
    (folder / "generation_config.json").write_text(json.dumps(stated))
    llm = LLM(folder, num_gpu_blocks_override=64, num_threads=1)
    assert llm.get_default_sampling_params() == SamplingParams(
        temperature=0.5, top_k=7, repetition_penalty=1.1
    )
    (folder / "generation_config.json").write_text('{"temperature": 0}')
    greedy = llm.generate("the cat", SamplingParams(temperature=0))
    assert llm.generate("the cat")[0].outputs[0].token_ids == greedy[0].outputs[0].token_ids
