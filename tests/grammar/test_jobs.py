from __future__ import annotations

from typing import Any, get_args

import pytest

from grammar import errors
from grammar.errors import (
    CompileMemory,
    CompileTimeout,
    GrammarError,
    GrammarTooLarge,
    InvalidGrammar,
    UnsupportedKeyword,
)
from grammar.jobs import (
    Backends,
    Blamed,
    BlameJob,
    Compiled,
    CompileJob,
    Compiler,
    Elsewhere,
    Fork,
    Forked,
    Loaded,
    Reap,
    Reaped,
    Refused,
    Reply,
    Request,
    Setup,
    Validated,
    ValidateJob,
    decode_reply,
    decode_request,
    encode,
    run,
)
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec, Limits
from grammar.validation import Report, Violation
from grammar.vocabulary import Vocabulary

SPEC = GrammarSpec("regex", "é", strict=False)


@pytest.mark.parametrize(
    "request_",
    [
        Setup(
            [b"\xff", b""],
            [1],
            [1],
            2,
            ["llguidance"],
            "llguidance",
            Limits(max_depth=3),
            1.5,
            1 << 40,
        ),
        CompileJob(SPEC, True),
        CompileJob(SPEC, False, ["xgrammar"], Refused("InvalidGrammar", ["$", "m"])),
        ValidateJob(SPEC, "text"),
        BlameJob(SPEC),
        Fork(),
        Reap(7),
    ],
)
def test_requests_survive_the_wire(request_: Request) -> None:
    assert decode_request(encode(request_)) == request_


@pytest.mark.parametrize(
    "reply",
    [
        Loaded(),
        Forked(7),
        Reaped(11),
        Compiled("outlines", SPEC, b"\x00\xff", (Finding("not", "$.not", False, "why"),)),
        Compiled("llguidance", SPEC, None, ()),
        Elsewhere("xgrammar", CompileJob(SPEC, True)),
        Blamed("$.pattern"),
        Validated(Report((Violation("$", "bad"),))),
        Refused("InvalidGrammar", ["$", "m"]),
    ],
)
def test_replies_survive_the_wire(reply: Reply) -> None:
    assert isinstance(reply, get_args(Reply))
    assert decode_reply(encode(reply)) == reply


@pytest.mark.parametrize(
    "error",
    [
        InvalidGrammar("$.a", "wrong"),
        GrammarTooLarge("$", "large"),
        UnsupportedKeyword("not", "$.not", "why"),
        CompileTimeout(1.5),
        CompileMemory(1 << 30, "$.pattern"),
        errors.CompileFailed("crashed"),
        errors.DeadEnd("no token"),
    ],
)
def test_errors_survive_the_wire(error: GrammarError) -> None:
    refused = decode_reply(encode(Refused.of(error)))
    assert isinstance(refused, Refused)
    again = refused.exception()
    assert type(again) is type(error)
    assert again.args == error.args
    assert str(again) == str(error)


def test_backends_are_loaded_once_and_when_needed(vocabulary: Vocabulary) -> None:
    backends = Backends(vocabulary)
    assert backends.load("llguidance") is backends.load("llguidance")


class Refusing:
    """A backend that takes nothing."""

    def compile(self, spec: GrammarSpec) -> None:
        raise InvalidGrammar("$", "not for me")


def test_the_next_candidate_is_asked_when_one_refuses(vocabulary: Vocabulary) -> None:
    backends = Backends(vocabulary)

    def load(name: str) -> Any:
        return Refusing() if name == "xgrammar" else backends.load(name)

    compiler = Compiler(vocabulary, ["xgrammar", "llguidance"], Limits(), load)
    outcome = compiler.compile(GrammarSpec.from_schema({"type": "integer"}))
    assert outcome.candidate.backend == "llguidance"
    alone = Compiler(vocabulary, ["xgrammar"], Limits(), load)
    with pytest.raises(InvalidGrammar, match="not for me"):
        alone.compile(GrammarSpec.from_schema({"type": "integer"}))


def test_a_job_of_another_backend_is_handed_on_with_what_was_tried(vocabulary: Vocabulary) -> None:
    def load(name: str) -> Any:
        assert name == "xgrammar"
        return Refusing()

    order = ["xgrammar", "llguidance"]
    spec = GrammarSpec.from_schema({"type": "integer"})
    handed_on = run(
        CompileJob(spec, False), Compiler(vocabulary, order, Limits(), load, here=order[:1])
    )
    assert isinstance(handed_on, Elsewhere)
    assert handed_on.backend == "llguidance"
    assert handed_on.job.tried == ["xgrammar"]
    there = Compiler(vocabulary, order, Limits(), Backends(vocabulary).load, here=order[1:])
    done = run(handed_on.job, there)
    assert isinstance(done, Compiled)
    assert done.backend == "llguidance"
    nobody = CompileJob(spec, False, ["llguidance", "outlines"], handed_on.job.refusal)
    with pytest.raises(InvalidGrammar, match="not for me"):
        run(nobody, Compiler(vocabulary, order[1:], Limits(), load))


def test_what_is_light_can_be_left_as_it_was_planned(vocabulary: Vocabulary) -> None:
    compiler = Compiler(vocabulary, ["llguidance"], Limits(), Backends(vocabulary).load)
    light = GrammarSpec.from_schema({"type": "integer", "title": "not for the backend"})
    heavy = GrammarSpec.from_schema({"allOf": [{"type": "integer"}, {"minimum": 1}]})
    left = run(CompileJob(light, True), compiler)
    assert left == Compiled("llguidance", GrammarSpec.from_schema({"type": "integer"}), None, ())
    for job in (CompileJob(light, False), CompileJob(heavy, True)):
        done = run(job, compiler)
        assert isinstance(done, Compiled)
        assert done.data is not None


def test_a_vocabulary_that_spells_nothing_can_still_warm_up() -> None:
    vocabulary = Vocabulary([b"x", b""], [1], [], 2)
    Compiler(vocabulary, ["llguidance"], Limits(), Backends(vocabulary).load).warm_up()


def test_a_validation_needs_no_compiler() -> None:
    result = run(ValidateJob(GrammarSpec.from_schema({"type": "null"}), "1"), None)
    assert isinstance(result, Validated)
    assert not result.report.passed
