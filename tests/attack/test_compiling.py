"""Grammars that are meant to cost others: each is refused with an error that names what is at
fault, and nobody waits for it, whichever backend it is for."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from grammar.compiler import GrammarChecker
from grammar.errors import CompileMemory, CompileTimeout, GrammarTooLarge
from grammar.schema.paths import pointer
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary
from tests.attack.neighbour import MAX_GAP_S, Neighbour
from tests.attack.serving import MODEL, Deployment, assert_memory_is_back
from tests.grammar.test_limits import STOPPED, TAKES
from tests.grammar.vocabularies import byte_vocabulary

NUM_HOSTILE = 4
WATCH_S = 6.0
LIMIT_BYTES = 64 << 20
MAX_BODY_BYTES = 4 << 20
"""By default: a larger grammar does not reach the compiler."""
LISTED = {"enum": [2**53 + 1]}
"""llguidance does not enforce it: a strict schema with it is for xgrammar."""
EXPONENTIAL = {"type": "string", "pattern": "^[ab]*a[ab]{22}$"}
"""Neither does xgrammar this: with both, it is for outlines."""


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    required = list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def doubled(depth: int) -> Any:
    schema: Any = EXPONENTIAL
    for _ in range(depth):
        schema = closed({"a": schema, "b": schema})
    return schema


BOMBS: dict[str, tuple[dict[str, Any], str]] = {
    "exponential": ({"anyOf": [LISTED, EXPONENTIAL]}, "$.anyOf[1].pattern"),
    "among others": (
        closed({f"p{i}": {"enum": ["x" * 100, 2**53 + 1]} for i in range(50)} | {"q": EXPONENTIAL}),
        "$.properties.q.pattern",
    ),
    "long": ({"anyOf": [LISTED, {"type": "string", "maxLength": 60_000}]}, "$.anyOf[1].maxLength"),
    "repeated": (
        closed({"a": LISTED, "b": {"type": "array", "maxItems": 900, "items": EXPONENTIAL}}),
        "$.properties.b.items.pattern",
    ),
    "doubled": ({"anyOf": [LISTED, doubled(6)]}, "pattern"),
}
"""For outlines, and the keyword that the error names."""
TREE = {
    "$defs": {
        f"d{i}": closed({name: {"$ref": f"#/$defs/d{i + 1}"} for name in "abcd"}) for i in range(30)
    }
    | {"d30": LISTED},
    "$ref": "#/$defs/d0",
}
HEAVY: dict[str, dict[str, Any]] = {
    "tree": TREE,
    "arrays": {
        "anyOf": [
            LISTED,
            {"type": "array", "maxItems": 60_000, "items": {"type": "array", "maxItems": 60_000}},
        ]
    },
    "alternatives": {
        "anyOf": [LISTED, *(closed({f"p{i}": {"type": "string"}}) for i in range(240))]
    },
    "members": closed({f"p{i}": LISTED for i in range(2_000)}),
    "values": {"enum": [2**53 + i for i in range(1_000)]},
}
"""For xgrammar: they compile, or are refused."""


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return byte_vocabulary()


class Peaks(threading.Thread):
    """The most that processes grow by while the block runs."""

    def __init__(self, pids: list[int]) -> None:
        super().__init__()
        self._processes = [psutil.Process(pid) for pid in pids]
        self._before = [process.memory_info().rss for process in self._processes]
        self._ended = threading.Event()
        self.growth = 0

    def run(self) -> None:
        while not self._ended.wait(0.005):
            for process, before in zip(self._processes, self._before, strict=True):
                try:
                    self.growth = max(self.growth, process.memory_info().rss - before)
                except psutil.NoSuchProcess:
                    continue

    def __enter__(self) -> Peaks:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


@pytest.mark.nightly
def test_a_bomb_for_one_backend_ends_in_its_limits_and_beside_the_others(
    vocabulary: Vocabulary,
) -> None:
    checker = GrammarChecker(vocabulary, num_workers=1)
    checker.check(GrammarSpec.from_schema({"type": "null"}))
    (planner,) = checker.worker_pids
    light = {"anyOf": [LISTED, {"type": "string", "pattern": "^a$"}]}
    assert checker.check(GrammarSpec.from_schema(light)).backend == "outlines"
    numbers = itertools.count()
    for name, (schema, keyword) in BOMBS.items():
        with Peaks(checker.worker_pids) as peaks:
            bomb = checker.submit(GrammarSpec.from_schema(schema), lane="hostile")
            beside = 0
            while not bomb.done():
                spec = GrammarSpec.from_schema({"const": f"{next(numbers)}"})
                assert checker.submit(spec, lane="neighbour").result(60).backend == "llguidance"
                beside += not bomb.done()
                time.sleep(0.01)
        error = bomb.exception()
        assert isinstance(error, CompileTimeout | CompileMemory | GrammarTooLarge), (name, error)
        assert keyword in str(error), (name, error)
        assert beside > 3, "the neighbour's grammars did not wait for it"
        assert peaks.growth < LIMIT_BYTES + (8 << 20), name
        assert planner in checker.worker_pids, "it ended no process of another backend"
    assert checker.check(GrammarSpec.from_schema(light | {"title": "again"})).backend == "outlines"
    checker.close()


# -- against a deployment


def body(spec: GrammarSpec, max_tokens: int) -> bytes:
    """A request for an output of this grammar; a schema as it is written, however deep."""
    source = spec.source
    match spec.kind:
        case "json_schema" if not spec.strict:
            schema = f'{{"name": "a", "schema": {source}}}'
            wanted = f'"response_format": {{"type": "json_schema", "json_schema": {schema}}}'
        case "json_schema":
            wanted = f'"structured_outputs": {{"json": {source}}}'
        case "ebnf":
            wanted = f'"structured_outputs": {{"grammar": {json.dumps(source)}}}'
        case kind:
            wanted = f'"structured_outputs": {{"{kind}": {json.dumps(source)}}}'
    messages = json.dumps([{"role": "user", "content": "Write one."}])
    text = f'{{"model": "{MODEL}", "max_tokens": {max_tokens}, "messages": {messages}, {wanted}}}'
    return text.encode()


class Attacker:
    """A tenant's client."""

    def __init__(self, http: httpx.AsyncClient, deployment: Deployment, key: str) -> None:
        self._http, self._url = http, f"{deployment.url}/v1/chat/completions"
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    async def ask(self, spec: GrammarSpec, max_tokens: int = 4) -> tuple[int, str]:
        """The status, and the error's message or the reason why the answer ended."""
        data = body(spec, max_tokens)
        answer = await self._http.post(self._url, content=data, headers=self._headers)
        told = answer.json()
        if answer.status_code == 200:
            return 200, str(told["choices"][0]["finish_reason"])
        return answer.status_code, str(told["error"]["message"])


async def attack(deployment: Deployment, names: list[str]) -> dict[str, tuple[int, str]]:
    """Send all grammars of these names, as several tenants at once; returns what was answered."""
    keys = [deployment.member(f"hostile {i}").key for i in range(NUM_HOSTILE)]
    answers: dict[str, tuple[int, str]] = {}
    left = iter(names)
    async with httpx.AsyncClient(timeout=120) as http:

        async def run(key: str) -> None:
            attacker = Attacker(http, deployment, key)
            for name in left:
                answers[name] = await attacker.ask(ATTACKS[name])

        await asyncio.gather(*map(run, keys))
    return answers


AMBIGUOUS = GrammarSpec(
    "ebnf", "start: x\nx: " + " | ".join(f'x "{i}" x' for i in range(900)) + ' | "z"'
)
ATTACKS: dict[str, GrammarSpec] = {
    "900 ambiguous alternatives": AMBIGUOUS,
    **{n: spec for n, (spec, _, _) in STOPPED.items() if len(spec.source) < MAX_BODY_BYTES},
    **{f"outlines: {name}": GrammarSpec.from_schema(s) for name, (s, _) in BOMBS.items()},
    **{f"xgrammar: {name}": GrammarSpec.from_schema(s) for name, s in HEAVY.items()},
}
NAMED = {
    **{name: named.strip("'") for name, (_, _, named) in STOPPED.items() if name in ATTACKS},
    **{f"outlines: {name}": keyword for name, (_, keyword) in BOMBS.items()},
}
NAMED |= {name: pointer(named) for name, named in NAMED.items() if named.startswith("$.")}
"""What the error names. The limit on time may come first, whose error names the place. Whether an
answer by the ambiguous rule comes to the matcher's limit depends on what is sampled."""
SLOW: dict[str, GrammarSpec] = {
    "250 alternatives": GrammarSpec.from_schema(
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {
                        "a": {"type": ["string", "array", "object"]},
                        "kind": {"const": i},
                    },
                    "required": ["kind"],
                }
                for i in range(250)
            ]
        },
        strict=False,
    ),
    "500 optional members": TAKES["500 properties"],
    "ambiguous": GrammarSpec("ebnf", "start: a\na: a a | /[a-z ]/ |"),
}
"""Those whose masks take longest."""


@pytest.fixture(scope="module")
def deployment(database: str) -> Iterator[Deployment]:
    with Deployment(database) as deployment:
        yield deployment


@pytest.mark.nightly
@pytest.mark.pg
@pytest.mark.asyncio
async def test_no_grammar_harms_a_neighbour(deployment: Deployment) -> None:
    warm = ["a regex", "outlines: exponential", "xgrammar: values"]
    await attack(deployment, warm)  # so that the libraries are loaded
    before = deployment.memory()
    async with Neighbour(deployment, deployment.member("calm").key, num_streams=4) as neighbour:
        calm = await neighbour.watch_for(WATCH_S)
        async with neighbour.watch() as attacked:
            started = time.monotonic()
            answers = await attack(deployment, list(ATTACKS))
            took_s = time.monotonic() - started
        print(f"{len(answers)} grammars in {took_s:.1f} s: calm {calm}, attacked {attacked}")
    wrong = {
        name: answers[name]
        for name, named in NAMED.items()
        if answers[name][0] != 400
        or not (named in answers[name][1] or "nested" in answers[name][1])
    }
    assert wrong == {}
    assert {status for status, _ in answers.values()} <= {200, 400}, answers
    # Where the calm has long gaps itself, the machine is busy with other things.
    attacked.assert_unharmed(calm, max_s=max(MAX_GAP_S, 3 * max(calm.gaps_s)))
    assert_memory_is_back(deployment, before, within_bytes=LIMIT_BYTES)


@pytest.mark.nightly
@pytest.mark.pg
@pytest.mark.asyncio
@pytest.mark.parametrize("name", SLOW)
async def test_no_mask_stalls_the_others(deployment: Deployment, name: str) -> None:
    member = deployment.member(f"beside {name}")
    async with (
        httpx.AsyncClient(timeout=120) as http,
        Neighbour(deployment, member.key, num_streams=4) as neighbour,
    ):
        attacker = Attacker(http, deployment, deployment.member("hostile").key)
        calm = await neighbour.watch_for(WATCH_S)
        async with neighbour.watch() as attacked:
            answers = [await attacker.ask(SLOW[name], max_tokens=60) for _ in range(8)]
        print(name, answers[-1], f"calm {calm}, attacked {attacked}")
    assert {status for status, _ in answers} <= {200, 400}, answers
    assert max(attacked.gaps_s) <= max(MAX_GAP_S, 3 * max(calm.gaps_s)), (calm, attacked)
