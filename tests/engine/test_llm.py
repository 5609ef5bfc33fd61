from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import LlamaForCausalLM

from engine.errors import ConfigError, InvalidRequest, ModelLoadError
from engine.llm import LLM, CompletionOutput, GenerationOutput, SamplingParams
from engine.messages import LoadProgress
from tests.engine import toys

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


def text_of(result: GenerationOutput) -> str:
    return result.outputs[0].text


class TestGenerate:
    def test_greedy_equals_transformers(self, llm: LLM, model_dir: Path) -> None:
        model = LlamaForCausalLM.from_pretrained(model_dir).eval()
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
        prompt = {"prompt_token_ids": list(range(5, 55))}
        first = llm.generate(prompt, GREEDY)[0]
        again = llm.generate(prompt, GREEDY)[0]
        assert again.outputs == first.outputs
        assert again.num_cached_tokens >= 48

    def test_no_prompts(self, llm: LLM) -> None:
        assert llm.generate([], GREEDY) == []


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


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompt", "params", "message"),
        [
            ("", GREEDY, "is empty"),
            ({"prompt_token_ids": [3] * 256}, GREEDY, "max_model_len = 256"),
            ({"prompt_token_ids": [3] * 250}, GREEDY, "max_tokens is 24"),
            ({"prompt_token_ids": [-1]}, GREEDY, "prompt_token_ids must be in"),
        ],
    )
    def test_a_bad_prompt_is_named_and_leaves_nothing_behind(
        self, llm: LLM, prompt: object, params: SamplingParams, message: str
    ) -> None:
        with pytest.raises(InvalidRequest, match=message):
            llm.generate(["good", prompt, "good"], params)  # type: ignore[list-item]
        assert len(llm.generate("good", GREEDY)[0].outputs[0].token_ids) == 24

    def test_an_interrupt_leaves_nothing_behind(self, llm: LLM) -> None:
        def interrupt(result: GenerationOutput) -> None:
            raise KeyboardInterrupt

        params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (2, 100)]
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS[:2], params, on_output=interrupt)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"max_model_length": 5}, "unknown field `max_model_length`"),
            ({"block_size": 0}, "block_size must be at least 1"),
            ({"block_size": "16"}, r"Expected `int`, got `str` - at `\$.block_size`"),
            ({"dtype": "fp8"}, "dtype"),
        ],
    )
    def test_a_bad_option_is_named(
        self, model_dir: Path, options: dict[str, object], message: str
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
