from __future__ import annotations

import gc
import json
import queue
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import psutil
import pytest

from grammar.backends.base import BackendGrammar
from grammar.bench import synthetic_vocabulary
from grammar.compiler import CompiledGrammar, GrammarChecker, GrammarCompiler, Verdict
from grammar.errors import (
    CompileFailed,
    CompileTimeout,
    GrammarTooLarge,
    InvalidGrammar,
    Unsatisfiable,
    UnsupportedKeyword,
)
from grammar.jobs import CompileJob, Elsewhere
from grammar.plan import plan
from grammar.spec import GrammarSpec, Kind, Limits
from grammar.vocabulary import Vocabulary
from tests.grammar.walks import accepts

UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


@pytest.fixture(scope="module", params=[0, 1], ids=["in process", "in a worker"])
def compiler(vocabulary: Vocabulary, request: pytest.FixtureRequest) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, backends=["llguidance"], num_workers=request.param)
    compiler.start().result()
    yield compiler
    compiler.close()


def test_a_spec_is_compiled_once(compiler: GrammarCompiler) -> None:
    first = compiler.compile(GrammarSpec("regex", "abc"))
    assert compiler.compile(GrammarSpec("regex", "abc")) is first
    assert compiler.submit(GrammarSpec("regex", "abc")).result(60) is first


def test_those_who_ask_at_once_share_one_compilation(compiler: GrammarCompiler) -> None:
    spec = GrammarSpec.from_schema({"enum": [f"value {i}" for i in range(900)]})
    futures: list[Future[CompiledGrammar]] = []
    threads = [
        threading.Thread(target=lambda: futures.append(compiler.submit(spec))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not futures[0].cancel()
    assert len({id(future.result(60)) for future in futures}) == 1


class Held(GrammarChecker):
    """Begins its work in order, and ends it when a test says so."""

    def __init__(self, vocabulary: Vocabulary, num_workers: int) -> None:
        super().__init__(vocabulary, num_workers=num_workers)
        self.begun: queue.Queue[str] = queue.Queue()
        self.gates: defaultdict[str, threading.Event] = defaultdict(threading.Event)

    def ask(self, name: str) -> Future[Verdict]:
        """For a regex, in the lane that its first letter names."""
        return self.submit(GrammarSpec("regex", name), lane=name[0])

    def _run(self, job: CompileJob, backend: str) -> Verdict | Elsewhere:
        name = job.spec.source
        if name[1:] == "elsewhere" and backend == self.backends[0]:
            return Elsewhere(self.backends[1], job)
        self.begun.put(name)
        assert self.gates[name].wait(10)
        return Verdict(name, (), 0)


def test_lanes_take_turns(vocabulary: Vocabulary) -> None:
    held = Held(vocabulary, num_workers=1)
    asked = ["a1", "a2", "a3", "b1", "b2", "c1"]
    futures = [held.ask(name) for name in asked]
    for expected in ("a1", "b1", "c1", "a2", "b2", "a3"):
        assert held.begun.get(timeout=10) == expected
        held.gates[expected].set()
    assert [future.result(10).backend for future in futures] == asked
    held.close()
    assert not held._lanes


def test_nobody_waits_in_the_lane_of_another_for_the_same(vocabulary: Vocabulary) -> None:
    """Whoever asks for much first, and then for what another is about to ask for, delays it by no
    more than one piece."""
    held = Held(vocabulary, num_workers=1)
    futures = [held.ask(name) for name in ("a1", "a2", "a3", "a4")]
    futures += [held.submit(GrammarSpec("regex", "a4"), lane="b") for _ in range(2)]
    for expected in ("a1", "a4", "a2", "a3"):
        assert held.begun.get(timeout=10) == expected
        held.gates[expected].set()
    assert [future.result(10).backend for future in futures] == ["a1", "a2", "a3", *["a4"] * 3]
    held.close()
    assert not held._lanes
    assert not held._not_begun


def test_a_lane_has_one_worker_however_many_there_are(vocabulary: Vocabulary) -> None:
    held = Held(vocabulary, num_workers=2)
    futures = [held.ask(name) for name in ("a1", "a2")]
    assert held.begun.get(timeout=10) == "a1"
    held.gates["b1"].set()
    assert held.ask("b1").result(10).backend == "b1"
    assert held.begun.get(timeout=10) == "b1"
    assert held.begun.empty()
    for name in ("a1", "a2"):
        held.gates[name].set()
    assert [future.result(10).backend for future in futures] == ["a1", "a2"]
    held.close()


def test_without_lanes_all_workers_work(vocabulary: Vocabulary) -> None:
    held = Held(vocabulary, num_workers=2)
    futures = [held.submit(GrammarSpec("regex", name)) for name in "xy"]
    assert {held.begun.get(timeout=10) for _ in futures} == {"x", "y"}
    for name in "xy":
        held.gates[name].set()
    assert [future.result(10).backend for future in futures] == ["x", "y"]
    held.close()


def test_nobody_waits_for_work_of_another_backend(vocabulary: Vocabulary) -> None:
    """Neither for the jobs of other lanes there, but only for those of their own."""
    held = Held(vocabulary, num_workers=1)
    stuck = [held.ask(f"{lane}elsewhere") for lane in "abc"]
    behind = held.ask("a1")
    held.gates["d1"].set()
    assert held.begun.get(timeout=10) == "aelsewhere"
    assert held.ask("d1").result(10).backend == "d1"
    assert not behind.done()
    for name in ("aelsewhere", "belsewhere", "celsewhere", "a1"):
        held.gates[name].set()
    assert [future.result(10).backend[1:] for future in stuck] == ["elsewhere"] * 3
    assert behind.result(10).backend == "a1"
    held.close()
    assert not held._lanes


def test_what_would_go_elsewhere_after_the_end_fails(vocabulary: Vocabulary) -> None:
    held = Held(vocabulary, num_workers=1)
    first = held.ask("a1")
    assert held.begun.get(timeout=10) == "a1"
    late = held.ask("aelsewhere")
    held._threads[held.backends[1]].shutdown()
    held.gates["a1"].set()
    assert first.result(10).backend == "a1"
    with pytest.raises(CompileFailed, match="closed"):
        late.result(10)
    held.close()


SERVED: dict[str, dict[str, Any]] = {
    # Each has what the backends before it do not enforce.
    "llguidance": {"enum": ["a"]},
    "xgrammar": {"enum": [2**53 + 1]},
    "outlines": {"anyOf": [{"enum": [2**53 + 1]}, {"type": "string", "pattern": "^[a-z]{3}$"}]},
}


def test_each_backend_has_a_process_of_its_own_which_starts_when_it_is_needed(
    vocabulary: Vocabulary,
) -> None:
    compiler = GrammarCompiler(vocabulary, num_workers=1)
    for number, (backend, schema) in enumerate(SERVED.items(), 1):
        found = compiler.compile(GrammarSpec.from_schema(schema))
        assert (found.backend, found.unenforced) == (backend, ())
        assert len(compiler.worker_pids) == number
    compiler.close()
    assert not compiler.worker_pids


def test_what_waits_when_it_is_closed_is_settled(vocabulary: Vocabulary) -> None:
    held = Held(vocabulary, num_workers=1)
    futures = [held.ask(name) for name in ("a1", "a2", "a3")]
    assert held.begun.get(timeout=10) == "a1"
    closing = threading.Thread(target=held.close)
    closing.start()
    while not held._first._shutdown:
        time.sleep(0.001)
    for name in ("a1", "a2", "a3"):
        held.gates[name].set()
    assert [future.result(10).backend for future in futures] == ["a1", "a2", "a3"]
    closing.join()
    with pytest.raises(RuntimeError):
        held.ask("a4")
    assert not held._lanes


@pytest.mark.parametrize(
    "source",
    [
        *("a(", "(?=a)b", "(?!a)b", r"\bfoo", "[z-a]", r"(a)\1", "a{5,2}", r"\p{Nope}"),
        *("", "()", r"[^\s\S]", "a{1000000000}", "a" * 300_000),
    ],
)
def test_a_bad_regex_is_refused(compiler: GrammarCompiler, source: str) -> None:
    with pytest.raises(InvalidGrammar):
        compiler.compile(GrammarSpec("regex", source))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('root ::= "a', ""),
        ("start: nothing", "nothing"),
        ("start: /a(/", "unclosed group"),
        ("%%%", ""),
        ("  \n", "empty"),
        ("start:", "nothing but an empty output"),
        ("root ::= ", "nothing but an empty output"),
        ("start: a\na:", "nothing but an empty output"),
        ("start: start", "no output can satisfy it"),
        ("start: a\na: b\nb: a", "no output can satisfy it"),
        ('start: "a" start', "rules: too many alternatives"),
        (f'root ::= {"(" * 3_000}"a"{")" * 3_000}', "nested too deeply"),
        ("start: <[274]>", "no output can satisfy it"),
        ("start: a\na[temperature=0.5]: /x/", "line 2: the attribute 'temperature'"),
        ("start: a\na[lazy, capture]: /x/", "line 2: the attribute 'capture'"),
        ("%import /etc/passwd\nstart: x", "Expected name"),
        ('start: x\nx: %json {"x-guidance": {"lenient": true}}', "line 2: 'x-guidance' is not"),
        ('%llguidance {"allow_invalid_utf8": true}\nstart: "a"', "line 1: 'allow_invalid_utf8'"),
        ("start: <|end|>", '"<|end|>"; only a structural tag can ask for tokens'),
    ],
)
def test_a_bad_grammar_is_refused(compiler: GrammarCompiler, source: str, message: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(GrammarSpec("ebnf", source))
    assert message in str(caught.value)
    assert caught.value.message.splitlines()[-1].strip() != "^"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 5, "maximum": 1},
        {"type": "string", "minLength": 5, "maxLength": 1},
        {"enum": []},
    ],
)
def test_what_nothing_satisfies_is_refused_loosely_too(
    vocabulary: Vocabulary, schema: dict[str, object]
) -> None:
    """Instead of handed on to a backend that leaves out what contradicts itself."""
    compiler = GrammarCompiler(vocabulary, num_workers=0)
    with pytest.raises(InvalidGrammar, match="nothing can satisfy"):
        compiler.compile(GrammarSpec.from_schema(schema, strict=False))
    assert "xgrammar" not in compiler._loaded._loaded
    compiler.close()


@pytest.mark.parametrize("depth", [150, 300])  # for the engine, and for ourselves
def test_tags_nested_too_deeply_are_refused(compiler: GrammarCompiler, depth: int) -> None:
    inner = '{"type":"sequence","elements":[' * depth + '{"type":"any_text"}' + "]}" * depth
    with pytest.raises(GrammarTooLarge, match="nested too deeply"):
        compiler.compile(
            GrammarSpec("structural_tag", f'{{"type":"structural_tag","format":{inner}}}')
        )


def test_a_bad_regex_within_a_tag_is_refused_with_its_place(compiler: GrammarCompiler) -> None:
    regex = {"type": "regex", "pattern": "(?=a)b"}
    elements = [{"type": "regex", "pattern": "ok"}, regex]
    source = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(GrammarSpec("structural_tag", json.dumps(source)))
    assert caught.value.path == "$.format.elements[1].pattern"
    regex["pattern"] = "((a{1,99}){1,99}){1,99}"
    with pytest.raises(GrammarTooLarge) as caught:
        compiler.compile(GrammarSpec("structural_tag", json.dumps(source)))
    assert caught.value.path == "$.format.elements[1].pattern"


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"type": "strin"}}}, "$.properties.a.type"),
        ({"$ref": "#/$defs/missing"}, "$.$ref"),
        ({"$ref": "https://example.com/schema"}, "$.$ref"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "$"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "$.properties.a"),
        (
            {"prefixItems": [{"type": "string", "minLength": 2, "maxLength": 1}], "minItems": 1}
            | {"type": "array"},
            "$.prefixItems[0]",
        ),
    ],
)
def test_an_invalid_schema_is_refused_with_its_place(
    compiler: GrammarCompiler, schema: dict[str, object], path: str
) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        compiler.compile(GrammarSpec.from_schema(schema))
    assert caught.value.path == path
    assert "%json" not in str(caught.value)
    assert "x-guidance" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "keyword", "path"),
    [
        (UNIQUE, "uniqueItems", "$.uniqueItems"),
        ({"items": {"not": {"multipleOf": 2}}}, "not", "$.items.not"),
        ({"type": "string", "pattern": r"a\b"}, "pattern", "$.pattern"),
        ({"oneOf": [{"minimum": 1}, {"multipleOf": 2}]}, "oneOf", "$.oneOf"),
        (
            {"$defs": {"a": {"contains": {}, "minContains": 2}}, "$ref": "#/$defs/a"},
            "contains",
            "$.$defs.a.contains",
        ),
        (UNIQUE | {"x-guidance": {"lenient": True}}, "uniqueItems", "$.uniqueItems"),
    ],
)
def test_a_keyword_nobody_enforces_is_named(
    compiler: GrammarCompiler, schema: dict[str, object], keyword: str, path: str
) -> None:
    with pytest.raises(UnsupportedKeyword) as caught:
        compiler.compile(GrammarSpec.from_schema(schema))
    assert (caught.value.keyword, caught.value.path) == (keyword, path)
    assert caught.value.reason


def test_without_strict_the_rest_is_enforced_and_the_gap_reported(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    spec = GrammarSpec.from_schema(UNIQUE, strict=False)
    compiled = compiler.compile(spec)
    assert [finding.path for finding in compiled.unenforced] == ["$.uniqueItems"]
    assert accepts(compiled.matcher(), vocabulary, "[1,1]")
    assert not accepts(compiled.matcher(), vocabulary, '["a"]')
    assert not compiler.validate(spec, "[1,1]").passed
    assert compiler.validate(spec, "[1,2]").passed
    strict = compiler.compile(GrammarSpec.from_schema({"type": "array"}))
    assert strict.unenforced == ()


def test_strict_and_not_strict_are_different_grammars(compiler: GrammarCompiler) -> None:
    compiler.compile(GrammarSpec.from_schema(UNIQUE, strict=False))
    with pytest.raises(UnsupportedKeyword):
        compiler.compile(GrammarSpec.from_schema(UNIQUE, strict=True))


def test_refusals_are_remembered_and_raised_afresh(compiler: GrammarCompiler) -> None:
    spec = GrammarSpec("regex", "(unclosed")
    errors = []
    for _ in range(2):
        with pytest.raises(InvalidGrammar) as caught:
            compiler.compile(spec)
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert str(errors[0]) == str(errors[1])


def test_an_error_that_nobody_foresaw_is_told_and_not_remembered(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = GrammarSpec("regex", "unforeseen")

    def fail(job: CompileJob, backend: str) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(compiler, "_run", fail)
        with pytest.raises(ZeroDivisionError):
            compiler.compile(spec)
    assert compiler.compile(spec).backend == "llguidance"


def test_limits_apply(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, limits=Limits(max_enum_values=2), num_workers=0)
    with pytest.raises(GrammarTooLarge):
        compiler.compile(GrammarSpec.from_schema({"enum": [1, 2, 3]}))
    compiler.close()


def test_the_cache_is_bounded_by_bytes(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(
        vocabulary, backends=["llguidance"], num_workers=0, cache_bytes=30_000
    )
    first = compiler.compile(GrammarSpec("regex", "0"))
    for i in range(1, 100):
        compiler.compile(GrammarSpec("regex", str(i)))
    assert compiler.cache_bytes <= 30_000
    assert compiler.compile(GrammarSpec("regex", "0")) is not first
    compiler.close()


def test_a_worker_compiles_nothing_that_is_compiled_here_anyway(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(vocabulary, backends=["llguidance"])
    compiler.start().result()
    backend = compiler._load("llguidance")
    loaded: list[GrammarSpec] = []

    def load(spec: GrammarSpec, data: bytes) -> BackendGrammar:
        loaded.append(spec)
        return backend.compile(spec)

    monkeypatch.setattr(backend, "load", load)
    compiler.compile(GrammarSpec.from_schema({"type": "integer"}))
    assert loaded == []
    compiler.compile(GrammarSpec.from_schema({"allOf": [{"type": "integer"}, {"minimum": 1}]}))
    assert len(loaded) == 1
    compiler.close()


def test_what_looks_light_and_is_refused_here_is_the_workers_to_judge(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(vocabulary, backends=["llguidance", "xgrammar"])
    compiler.start().result()
    bounded = {"type": "integer", "minimum": 12_345_678_901, "maximum": 123_456_789_012_347}
    refused = {"anyOf": [bounded | {"multipleOf": 33 + i} for i in range(60)]}
    assert next(plan(GrammarSpec.from_schema(refused), ["llguidance"])).is_light
    with pytest.raises(InvalidGrammar, match="multipleOf or rules: too much"):
        compiler.compile(GrammarSpec.from_schema(refused))
    with pytest.raises(Unsatisfiable):
        compiler.compile(GrammarSpec.from_schema({"type": "integer", "minimum": 3, "maximum": 2}))
    compiler.close()


def test_the_first_grammar_waits_for_nothing_that_later_ones_do_not() -> None:
    """What takes long is done by ``start``."""
    vocabulary = synthetic_vocabulary()
    compiler = GrammarCompiler(vocabulary, num_workers=0)
    compiler.start().result()
    assert {"text_mask", "eos_mask", "solid_mask"} <= vars(vocabulary).keys()
    compiler.close()


def test_a_timeout_is_remembered_too(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(
        vocabulary, backends=["outlines"], timeout_s=0.3, memory_bytes=1 << 30
    )
    compiler.start().result()
    spec = GrammarSpec.from_schema({"type": "string", "pattern": "^[ab]*a[ab]{22}$"})
    with pytest.raises(CompileTimeout):
        compiler.compile(spec)
    assert compiler.submit(spec).done()
    with pytest.raises(CompileTimeout):
        compiler.compile(spec)
    compiler.close()


@pytest.mark.parametrize(
    ("kind", "source", "backends", "chosen"),
    [
        ("regex", "a+", ["outlines", "llguidance"], "llguidance"),
        ("regex", "a+", ["xgrammar", "llguidance"], "xgrammar"),
        ("json_object", "", ["outlines", "llguidance"], "llguidance"),
        ("json_schema", '{"type": "integer"}', ["outlines", "llguidance"], "outlines"),
        (
            "json_schema",
            '{"type": "integer", "minimum": 3}',
            ["outlines", "llguidance"],
            "llguidance",
        ),
    ],
)
def test_the_first_backend_that_enforces_all_is_taken(
    vocabulary: Vocabulary, kind: Kind, source: str, backends: list[str], chosen: str
) -> None:
    compiler = GrammarCompiler(vocabulary, backends=backends, num_workers=0)
    assert compiler.compile(GrammarSpec(kind, source)).backend == chosen
    compiler.close()


def test_a_kind_that_no_backend_takes_is_refused(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, backends=["outlines"], num_workers=0)
    with pytest.raises(InvalidGrammar, match="none of outlines takes ebnf"):
        compiler.compile(GrammarSpec("ebnf", 'start: "a"'))
    compiler.close()


def test_a_checker_judges_without_loading_anything(vocabulary: Vocabulary) -> None:
    program = (
        "import sys\n"
        "from grammar.compiler import GrammarChecker\n"
        "from grammar.spec import GrammarSpec\n"
        "from grammar.vocabulary import Vocabulary\n"
        "tokens = [bytes([i]) for i in range(256)] + [b'']\n"
        "vocabulary = Vocabulary(tokens, [256], [], 257)\n"
        "checker = GrammarChecker(vocabulary, backends=['llguidance'], timeout_s=60)\n"
        "print(checker.check(GrammarSpec.from_schema({'type': 'integer'})).backend)\n"
        "checker.close()\n"
        "bad = {'torch', 'xgrammar', 'llguidance'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "llguidance\n"


def test_a_checker_agrees_with_the_compiler(vocabulary: Vocabulary) -> None:
    checker = GrammarChecker(vocabulary)
    verdict = checker.check(GrammarSpec.from_schema(UNIQUE, strict=False))
    assert verdict.backend == "llguidance"
    assert [finding.keyword for finding in verdict.unenforced] == ["uniqueItems"]
    with pytest.raises(UnsupportedKeyword):
        checker.check(GrammarSpec.from_schema(UNIQUE))
    assert checker.check(GrammarSpec("regex", "a")).unenforced == ()
    assert not checker.validate(GrammarSpec.from_schema(UNIQUE), "[1,1]").passed
    checker.close()


def test_a_forgotten_compiler_leaves_no_process(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    compiler.start().result()
    (pid,) = compiler.worker_pids
    del compiler
    gc.collect()
    assert not psutil.pid_exists(pid)


def test_closing_twice_is_fine(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    compiler.close()
    compiler.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shutdown"):
            compiler.submit(GrammarSpec("regex", "never compiled"))
