"""Structured outputs of the offline API: every kind, all in one batch, on the bundled model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import pytest

from engine.demo import MODEL_DIR
from engine.errors import InvalidRequest
from engine.llm import LLM, SamplingParams, StructuredOutputs

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CALL = {
    "type": "structural_tag",
    "format": {
        "type": "tags_with_separator",
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": True,
        "tags": [
            {
                "type": "tag",
                "begin": "<call>",
                "content": {"type": "json_schema", "json_schema": SCHEMA},
                "end": "</call>",
            }
        ],
    },
}

pytestmark = (
    pytest.mark.nightly
)  # the same engine answers in on_one_gateway/test_structured_outputs.py


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM(MODEL_DIR, num_gpu_blocks_override=512, num_threads=1)
    yield llm
    assert not llm._core.has_unfinished


def params(outputs: StructuredOutputs, seed: int = 0) -> SamplingParams:
    return SamplingParams(temperature=1.5, seed=seed, max_tokens=200, structured_outputs=outputs)


def test_every_kind_in_one_batch(llm: LLM) -> None:
    kinds = [
        StructuredOutputs(json=SCHEMA),  # type: ignore[arg-type]
        StructuredOutputs(json=json.dumps(SCHEMA)),
        StructuredOutputs(json_object=True),
        StructuredOutputs(regex=r"[0-9]{3}-[ab]+c"),
        StructuredOutputs(choice=["yes", "no", "né"]),  # type: ignore[arg-type]
        StructuredOutputs(grammar='start: "(" inner ")"\ninner: /[xy]{1,9}/'),
        StructuredOutputs(structural_tag=CALL),  # type: ignore[arg-type]
    ]
    jobs = [params(kind, seed) for seed in range(3) for kind in kinds] + [
        SamplingParams(max_tokens=5)
    ]
    results = llm.generate(["Hello"] * len(jobs), jobs)
    for index, result in enumerate(results[:-1]):
        (output,) = result.outputs
        if output.finish_reason == "length":
            continue
        text, kind = output.text, index % len(kinds)
        if kind in (0, 1):
            jsonschema.validate(json.loads(text), SCHEMA)
        elif kind == 2:
            assert isinstance(json.loads(text), dict)
        elif kind == 3:
            assert re.fullmatch(r"[0-9]{3}-[ab]+c", text)
        elif kind == 4:
            assert text in ("yes", "no", "né")
        elif kind == 5:
            assert re.fullmatch(r"\([xy]{1,9}\)", text)
        else:
            inner = text.removeprefix("<call>").removesuffix("</call>")
            jsonschema.validate(json.loads(inner), SCHEMA)
    finished = [result.outputs[0].finish_reason for result in results]
    assert finished.count("stop") > len(jobs) / 2


def test_what_cannot_be_enforced_is_refused_unless_it_need_not_be(llm: LLM) -> None:
    schema = json.dumps(
        {
            "type": "array",
            "items": {"pattern": "^a$", "type": "string"},
            "maxItems": 2,
            "uniqueItems": True,
        }
    )
    with pytest.raises(InvalidRequest, match=r"uniqueItems.*\$\.uniqueItems"):
        llm.generate("x", params(StructuredOutputs(json=schema)))
    loose = StructuredOutputs(json=schema, strict=False)
    verdicts = set()
    for seed in range(12):
        (result,) = llm.generate("x", params(loose, seed))
        output = result.outputs[0]
        document = json.loads(output.text)
        assert set(document) <= {"a"}
        assert output.compliance is not None
        assert output.compliance.unenforced == [("uniqueItems", "$.uniqueItems")]
        assert output.compliance.valid == (len(document) < 2)
        assert [v.path for v in output.compliance.violations] == ["$"] * (len(document) == 2)
        verdicts.add(output.compliance.valid)
    assert verdicts == {True, False}
    enforced = StructuredOutputs(json='{"type": "integer", "maximum": 5}', strict=False)
    assert llm.generate("x", params(enforced))[0].outputs[0].compliance is None


def test_a_document_is_judged_without_its_reasoning_and_when_cut_short(llm: LLM) -> None:
    end = tuple(llm.get_tokenizer().encode("\n", add_special_tokens=False))
    schema = (
        '{"type": "array", "items": {"type": "string", "pattern": "^a$"}, "maxItems": 2,'
        ' "uniqueItems": true}'
    )
    outputs = StructuredOutputs(json=schema, strict=False, reasoning_end_token_ids=end)
    results = llm.generate(["Hello"] * 8, [params(outputs, seed) for seed in range(8)])
    for output in (result.outputs[0] for result in results):
        assert output.compliance is not None
        document = output.text.partition("\n")[2]
        is_whole = output.finish_reason == "stop"
        assert output.compliance.valid == (is_whole and len(json.loads(document)) < 2)
    plain = StructuredOutputs(json=schema, strict=False)
    stopped = SamplingParams(structured_outputs=plain, stop=("[",), max_tokens=50)
    (output,) = llm.generate("x", stopped)[0].outputs
    assert output.stop_reason == "["
    assert output.compliance is not None
    assert output.compliance.valid is False
    assert "not JSON" in output.compliance.violations[0].message


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (StructuredOutputs(regex="(?=a)b"), "regex|look"),
        (StructuredOutputs(json='{"type": "banana"}'), "banana"),
        (StructuredOutputs(structural_tag='{"format": {"type": "zz"}}'), "zz"),
        (StructuredOutputs(), "exactly one"),
        (StructuredOutputs(regex="a", disable_any_whitespace=True), "JSON only"),
    ],
)
def test_what_is_wrong_is_said(llm: LLM, outputs: StructuredOutputs, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate("x", params(outputs))


def test_reasoning_is_free_until_its_end(llm: LLM) -> None:
    end = tuple(llm.get_tokenizer().encode("\n", add_special_tokens=False))
    outputs = StructuredOutputs(regex="[xyz]{5}", reasoning_end_token_ids=end)
    results = llm.generate(["Hello"] * 8, [params(outputs, seed) for seed in range(8)])
    ended = [r.outputs[0] for r in results if r.outputs[0].finish_reason == "stop"]
    assert ended
    for output in ended:
        assert re.fullmatch(r"[xyz]{5}", output.text.partition("\n")[2])
