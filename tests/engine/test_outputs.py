from __future__ import annotations

from typing import Any

import pytest

from engine.messages import RequestOutput, TokenLogprobs
from engine.outputs import CompletionOutput, GenerationProgress, Logprob, named
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.text.tokenizer import Tokenizer
from tests.engine import toys

TOKENIZER = Tokenizer(toys.byte_level(), eos_token_ids=frozenset([2]))
CUMULATIVE, DELTA, FINAL = (
    RequestOutputKind.CUMULATIVE,
    RequestOutputKind.DELTA,
    RequestOutputKind.FINAL_ONLY,
)


def progress(tokenizer: Tokenizer | None = TOKENIZER, **params: object) -> GenerationProgress:
    how = SamplingParams(**params)  # type: ignore[arg-type]
    return GenerationProgress("7", "hi", [5, 6], how, tokenizer)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def output(text: str, reason: str | None = None, **fields: object) -> RequestOutput:
    return RequestOutput("7", ids(text), reason, **fields)  # type: ignore[arg-type]


def test_what_each_kind_hears() -> None:
    job = progress()
    first = job.push(0, output("the "))
    assert first == CompletionOutput(0, "the ", ids("the "))
    cumulative = job.result(CUMULATIVE, 0, first)
    assert job.result(FINAL, 0, first) is None
    second = job.push(0, output("cat", "length"))
    assert second == CompletionOutput(0, "cat", ids("cat"), "length")
    delta = job.result(DELTA, 0, second)
    assert delta is not None
    assert (delta.outputs, delta.finished) == ([second], True)
    final = job.result(FINAL, 0, second)
    assert final is not None
    assert final.outputs == [CompletionOutput(0, "the cat", ids("the ") + ids("cat"), "length")]
    assert final == job.result(CUMULATIVE, 0, second) == job.final()
    assert (final.request_id, final.prompt, final.prompt_token_ids) == ("7", "hi", [5, 6])
    # A result does not change when the generation goes on.
    assert cumulative is not None
    assert cumulative.outputs == [CompletionOutput(0, "the ", ids("the "))]
    assert not cumulative.finished


def test_a_result_is_final_when_the_last_completion_is() -> None:
    job = progress(n=2)
    late = job.push(1, output("b", "stop", num_cached_tokens=9))
    assert job.is_finished(1)
    assert not job.finished
    assert job.result(FINAL, 1, late) is None
    early = job.push(0, output("a", "length", num_cached_tokens=1))
    final = job.result(FINAL, 0, early)
    assert final is not None
    assert [completion.text for completion in final.outputs] == ["a", "b"]
    assert final.num_cached_tokens == 1, "what the others share with the first is not counted"


def test_a_stop_string_ends_a_completion_before_the_engine_does() -> None:
    job = progress(stop="ca")
    assert job.push(0, output("the c")).text == "the "
    cut = job.push(0, output("at sat"))
    assert (cut.text, cut.finish_reason, cut.stop_reason) == ("", "stop", "ca")
    assert job.finished
    assert job.final().outputs[0].text == "the "


def test_without_a_tokenizer_there_are_only_ids() -> None:
    job = progress(None, logprobs=0)
    found = [TokenLogprobs(5, -1.0, 3)]
    delta = job.push(0, RequestOutput("7", [5], "length", logprobs=found))
    assert (delta.text, delta.token_ids) == ("", [5])
    assert delta.logprobs == [{5: Logprob(-1.0, 3, None)}]


def test_logprobs_name_the_token_first_and_each_once() -> None:
    (a,), (b,) = ids("a"), ids("b")
    records = [TokenLogprobs(a, -2.0, 2, [(b, -0.5), (a, -2.0)]), TokenLogprobs(2, -1.0, 1)]
    first, second = named(records, TOKENIZER) or []
    assert list(first.items()) == [(a, Logprob(-2.0, 2, "a")), (b, Logprob(-0.5, 1, "b"))]
    assert second == {2: Logprob(-1.0, 1, "</s>")}
    assert named(None, TOKENIZER) is None


def test_the_log_probabilities_of_a_completion_add_up() -> None:
    job = progress(logprobs=0)
    sums = []
    for token_id, logprob in ((5, -0.5), (6, -1.25)):
        delta = job.push(
            0, RequestOutput("7", [token_id], logprobs=[TokenLogprobs(token_id, logprob, 1)])
        )
        sums.append(delta.cumulative_logprob)
    assert sums == [-0.5, -1.75]
    assert job.final().outputs[0].cumulative_logprob == -1.75
    assert progress().push(0, output("a")).cumulative_logprob is None


def test_prompt_logprobs_come_with_all_later_results() -> None:
    job = progress(prompt_logprobs=0)
    first = job.push(0, output("a", prompt_logprobs=[TokenLogprobs(6, -1.0, 1)]))
    second = job.push(0, output("b"))
    for delta in (first, second):
        result = job.result(CUMULATIVE, 0, delta)
        assert result is not None
        assert result.prompt_logprobs is not None
        assert result.prompt_logprobs[0] is None
        assert [*(result.prompt_logprobs[1] or ())] == [6]


@pytest.mark.parametrize("include", [False, True])
def test_tokens_behind_a_stop_string_are_no_part_of_the_output(include: bool) -> None:
    """However many come at once, as they do when drafts are accepted."""
    params: dict[str, Any] = {"stop": "c", "logprobs": 0, "include_stop_str_in_output": include}
    tokens = ids("abcde")
    records = [TokenLogprobs(token_id, -1.0, 1) for token_id in tokens]
    for split in range(len(tokens)):
        job = progress(**params)
        for part in (slice(0, split), slice(split, None)):
            if not job.is_finished(0):
                job.push(0, RequestOutput("7", tokens[part], logprobs=records[part]))
        whole = job.final().outputs[0]
        assert (whole.text, whole.token_ids) == ("abc" if include else "ab", tokens[:3])
        assert (whole.stop_reason, whole.cumulative_logprob) == ("c", -3.0)
        assert [list(entry) for entry in whole.logprobs or ()] == [[each] for each in tokens[:3]]
