from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from gateway.admission.unenforced import WHOLE, LooseCalls, Unenforced
from gateway.generation import compliance
from gateway.generation.compliance import Call, ComplianceChecks
from gateway.schemas.chat import FunctionDefinition
from gateway.schemas.common import Compliance
from grammar.compiler import GrammarChecker
from grammar.errors import CompileTimeout
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec
from grammar.validation import Report
from tenants.lanes import Lanes
from tests.gateway.serving import until
from tests.grammar.vocabularies import byte_vocabulary

TAGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
UNIQUE = Finding("uniqueItems", "$.properties.tags.uniqueItems", enforced=False)
FUNCTIONS = [
    FunctionDefinition(name="held", parameters={"properties": {"tags": TAGS}}),
    FunctionDefinition(name="free", parameters={"properties": {"a": {"type": "integer"}}}),
    FunctionDefinition(name="bare"),
    FunctionDefinition(name="strict", parameters={"type": "object"}, strict=True),
]
TENANT = uuid4()
LOOSE = LooseCalls(
    {function.name: function for function in FUNCTIONS},
    {"held": (UNIQUE,), "free": WHOLE, "bare": WHOLE},
)


@pytest.fixture(scope="module")
def checks() -> Iterator[ComplianceChecks]:
    checker = GrammarChecker(byte_vocabulary(), backends=["llguidance"])
    yield ComplianceChecks(checker.submit_validation, Lanes())
    checker.close()


def plain(found: Compliance | None) -> Any:
    return msgspec.to_builtins(found)


@pytest.mark.asyncio
async def test_a_document(checks: ComplianceChecks) -> None:
    unenforced = Unenforced(GrammarSpec.from_schema(TAGS, strict=False), (UNIQUE,))
    assert plain(await checks.of_document(unenforced, '["a", "b"]', tenant=TENANT)) == {
        "unenforced": [{"keyword": "uniqueItems", "path": UNIQUE.path}],
        "valid": True,
        "violations": [],
    }
    failed = await checks.of_document(unenforced, '["a", "a"]', tenant=TENANT)
    assert not failed.valid
    assert [violation.path for violation in failed.violations] == ["$"]


@pytest.mark.asyncio
async def test_calls_name_their_function_and_their_id(checks: ComplianceChecks) -> None:
    calls = [
        Call("c1", "held", '{"tags": ["x", "x"]}'),
        Call("c2", "free", '{"a": "one"}'),
        Call("c3", "free", '{"a": 1}'),
        Call("c4", "strict", "{}"),
    ]
    found = plain(await checks.of_calls(LOOSE, calls, tenant=TENANT))
    assert found["unenforced"] == [
        {"keyword": "uniqueItems", "path": UNIQUE.path, "function": "held"},
        {"keyword": "parameters", "path": "$", "function": "free"},
    ]
    assert found["valid"] is False
    where = [(violation["call_id"], violation["path"]) for violation in found["violations"]]
    assert where == [("c1", "$.tags"), ("c2", "$.a")]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name", "arguments", "valid"),
    [
        ("free", '{"a": 1}', True),
        ("free", "{}", True),
        ("free", "[]", False),
        ("free", '{"a": 1', False),
        ("bare", "{}", True),
        ("bare", '{"a": 1}', False),
        ("gone", "{}", False),
    ],
)
async def test_one_call(checks: ComplianceChecks, name: str, arguments: str, valid: bool) -> None:
    found = await checks.of_calls(LOOSE, [Call("c", name, arguments)], tenant=TENANT)
    assert found is not None
    assert found.valid is valid
    assert bool(found.violations) is not valid


@pytest.mark.asyncio
async def test_calls_that_were_held_to_all_of_their_schema_need_no_check() -> None:
    def never(spec: GrammarSpec, text: str) -> Future[Report]:
        raise AssertionError(spec)

    assert (
        await ComplianceChecks(never, Lanes()).of_calls(
            LOOSE, [Call("c", "strict", "{}")], tenant=TENANT
        )
        is None
    )


@pytest.mark.asyncio
async def test_what_cannot_be_found_out_is_neither_valid_nor_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Future[Report]] = [Future(), Future()]
    checks = ComplianceChecks(lambda spec, text: answers.pop(0), Lanes())
    answers[0].set_exception(CompileTimeout(5))
    monkeypatch.setattr(compliance, "CHECK_TIMEOUT_S", 0.01)
    for _ in range(2):  # failed, and never done
        found = await checks.of_calls(LOOSE, [Call("c", "free", "{}")], tenant=TENANT)
        assert found is not None
        assert (found.valid, found.violations) == (None, [])
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.mark.asyncio
async def test_slow_checks_of_one_tenant_do_not_queue_before_anothers() -> None:
    asked: list[Future[Report]] = []

    def validate(spec: GrammarSpec, text: str) -> Future[Report]:
        asked.append(Future())
        return asked[-1]

    checks = ComplianceChecks(validate, Lanes())
    calls = [Call("c", "free", "{}")]
    slow = [asyncio.create_task(checks.of_calls(LOOSE, calls, tenant=TENANT)) for _ in range(5)]
    await until(lambda: len(asked) == 1)
    other = asyncio.create_task(checks.of_calls(LOOSE, calls, tenant=uuid4()))
    await until(lambda: len(asked) == 2)
    asked[1].set_result(Report(()))
    found = await other
    assert found is not None
    assert found.valid
    for index in (0, 2, 3, 4, 5):
        await until(lambda: len(asked) > index)  # noqa: B023 - it is awaited at once
        asked[index].set_result(Report(()))
    assert all(found is not None and found.valid for found in await asyncio.gather(*slow))
