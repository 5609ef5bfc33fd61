"""Plans which backends may compile a grammar, and the spec that each is given."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from grammar import structural_tag
from grammar.audit import audit, schemas_of
from grammar.errors import InvalidGrammar, UnsupportedKeyword
from grammar.schema.document import Schema
from grammar.schema.paths import ROOT
from grammar.schema.scope import Finding
from grammar.spec import GrammarSpec, Kind

# The kinds of grammar that each engine takes. A regex, a choice or an ebnf is compiled by the first
# one that takes its kind and by no other, because engines silently differ in what they support.
_KINDS: dict[Kind, tuple[str, ...]] = {
    "json_schema": ("llguidance", "xgrammar", "outlines"),
    "json_object": ("llguidance", "xgrammar"),
    "regex": ("llguidance", "xgrammar"),
    "choice": ("llguidance", "xgrammar"),
    "ebnf": ("llguidance", "xgrammar"),
    "structural_tag": ("llguidance", "xgrammar"),
}


# Engines that write exactly the separators that they are given.
_COMPACT = ("llguidance",)
# What takes time in proportion to the schema as it is lowered, where that merges nothing, and to
# the automata of its divisors; and how much of them there may be.
_LINEAR = ("llguidance",)
_LIGHT_CHARS = 8_192
_LIGHT_DIVISOR_STATES = 5_000


@dataclass(frozen=True, slots=True)
class Candidate:
    backend: str
    spec: GrammarSpec
    """The spec as the backend gets it, with schemas lowered to what it enforces."""
    unenforced: tuple[Finding, ...] = ()
    """What was left out of the schemas."""
    is_light: bool = False
    """Whether it certainly compiles within 0.1 s and 50 MB, because it is short and nothing in it
    multiplies."""


def plan(spec: GrammarSpec, backends: Sequence[str]) -> Iterator[Candidate]:
    """The backends to try, the best first: for a strict grammar those that enforce every keyword,
    otherwise all, ordered by how much they leave out. An iterator, because the first one is nearly
    always enough.

    ``spec`` must be well formed and small (``GrammarSpec.validate``). Raises ``UnsupportedKeyword``
    for a strict grammar that no backend enforces, ``InvalidGrammar`` if no backend takes its kind.
    """
    able = [backend for backend in backends if backend in _KINDS[spec.kind]]
    if not able:
        raise InvalidGrammar("$", f"none of {', '.join(backends)} takes {spec.kind}")
    if not spec.any_whitespace:
        able = [backend for backend in able if backend in _COMPACT]
        if not able:
            raise InvalidGrammar("$", f"none of {', '.join(backends)} leaves out blanks reliably")
    if spec.kind == "structural_tag":
        able = _able_to_name_tokens(spec, able)
    if spec.kind not in ("json_schema", "structural_tag"):
        multiplies = spec.kind not in ("json_object", "choice")
        yield Candidate(able[0], spec, is_light=_is_light(able[0], spec.source, multiplies))
        return
    inexact: list[Candidate] = []
    for backend in able:
        candidate = _candidate(spec, backend)
        if candidate.unenforced:
            inexact.append(candidate)
        else:
            yield candidate
    inexact.sort(key=lambda candidate: len(candidate.unenforced))
    if not spec.strict:
        yield from inexact
    elif len(inexact) == len(able):
        worst = inexact[0].unenforced[0]
        raise UnsupportedKeyword(worst.keyword, worst.path, worst.reason)


def _able_to_name_tokens(spec: GrammarSpec, able: list[str]) -> list[str]:
    """Whether a tag names a special token, which xgrammar 0.2.8 never allows."""
    named = next(structural_tag.tokens(structural_tag.parse(spec.document())), None)
    if named is None:
        return able
    if "llguidance" not in able:
        raise InvalidGrammar(named.path, f"{', '.join(able)} cannot be told to write a token")
    return ["llguidance"]


def _candidate(spec: GrammarSpec, backend: str) -> Candidate:
    lowered = {
        part.path: audit(part.schema, (backend,), path=part.path).lowered[backend]
        for part in schemas_of(spec)
    }
    unenforced = [finding for each in lowered.values() for finding in each.unenforced]

    def of(part: structural_tag.JsonSchema) -> Schema:
        schema = lowered[part.path].schema
        if schema is False:
            raise InvalidGrammar(part.path, "nothing can satisfy the schema")
        return schema

    multiplies = any(each.merges for each in lowered.values()) or (
        sum(each.num_divisor_states for each in lowered.values()) > _LIGHT_DIVISOR_STATES
    )
    if spec.kind == "json_schema":
        document: Schema = of(structural_tag.JsonSchema(True, ROOT))
    else:
        tree = structural_tag.parse(spec.document())
        multiplies |= any(isinstance(p, structural_tag.Regex) for p in structural_tag.walk(tree))
        document = structural_tag.to_json(structural_tag.map_schemas(tree, of))
    source = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return Candidate(
        backend,
        replace(spec, source=source),
        tuple(unenforced),
        is_light=_is_light(backend, source, multiplies),
    )


def _is_light(backend: str, source: str, multiplies: bool) -> bool:
    return backend in _LINEAR and not multiplies and len(source) <= _LIGHT_CHARS
