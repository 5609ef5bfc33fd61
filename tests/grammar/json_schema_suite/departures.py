"""Where what we do departs from the official suite, by name and with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto


class Effect(Flag):
    NOT_GENERATED = auto()
    """What the suite takes for valid is not generated."""
    GENERATED = auto()
    """What the suite takes for invalid is generated."""
    CHECKED_OTHERWISE = auto()
    """A finished document is judged otherwise."""
    REFUSED = auto()
    """A schema is refused although it has valid documents, and no keyword is named that cannot be
    enforced."""


NOT_GENERATED, GENERATED, CHECKED_OTHERWISE, REFUSED = Effect
Name = tuple[str, str, str]
"""A file, a group and an instance."""
EVERY_ONE = "*"
"""For a whole group."""


@dataclass(frozen=True)
class Departure:
    reason: str
    effect: Effect
    names: dict[str, dict[str, list[str]]]
    """By file and group, the instances."""
    backend: str = ""
    """The only one that departs."""

    def listed(self) -> set[Name]:
        return {
            (file, group, instance)
            for file, groups in self.names.items()
            for group, instances in groups.items()
            for instance in instances
        }


DEPARTURES = [
    Departure(
        "formats are enforced",
        NOT_GENERATED | CHECKED_OTHERWISE,
        {
            "format.json": {
                "idn-email format": [
                    "invalid idn-email string is only an annotation by default",
                ],
                "idn-hostname format": [
                    "invalid idn-hostname string is only an annotation by default",
                ],
                "iri format": [
                    "invalid iri string is only an annotation by default",
                ],
                "iri-reference format": [
                    "invalid iri-reference string is only an annotation by default",
                ],
                "regex format": [
                    "invalid regex string is only an annotation by default",
                ],
                "relative-json-pointer format": [
                    "invalid relative-json-pointer string is only an annotation by default",
                ],
                "uri-template format": [
                    "invalid uri-template string is only an annotation by default",
                ],
                "date format": [
                    "invalid date string is only an annotation by default",
                ],
                "date-time format": [
                    "invalid date-time string is only an annotation by default",
                ],
                "duration format": [
                    "invalid duration string is only an annotation by default",
                ],
                "email format": [
                    "invalid email string is only an annotation by default",
                ],
                "hostname format": [
                    "invalid hostname string is only an annotation by default",
                ],
                "ipv4 format": [
                    "invalid ipv4 string is only an annotation by default",
                ],
                "ipv6 format": [
                    "invalid ipv6 string is only an annotation by default",
                ],
                "json-pointer format": [
                    "invalid json-pointer string is only an annotation by default",
                ],
                "time format": [
                    "invalid time string is only an annotation by default",
                ],
                "uri format": [
                    "invalid uri string is only an annotation by default",
                ],
                "uri-reference format": [
                    "invalid uri-reference string is only an annotation by default",
                ],
                "uuid format": [
                    "invalid uuid string is only an annotation by default",
                ],
            },
        },
    ),
    Departure(
        "integers beyond 2^53 - 1 are not generated, where a bound lies beyond it",
        NOT_GENERATED,
        {
            "optional/bignum.json": {
                "maximum integer comparison": ["comparison works for high numbers"],
                "minimum integer comparison": ["comparison works for very negative numbers"],
            },
        },
        backend="llguidance",
    ),
    Departure(
        "A-labels are not generated, nor rarer scripts in names of hosts",
        NOT_GENERATED,
        {
            "optional/format/hostname.json": {
                "validation of host names": ["a valid punycoded IDN hostname"],
            },
            "optional/format/idn-hostname.json": {
                "validation of internationalized host names": [
                    "Arabic-Indic digits not mixed with Extended Arabic-Indic digits",
                    "Exceptions that are PVALID, left-to-right chars",
                    "Exceptions that are PVALID, right-to-left chars",
                    "Extended Arabic-Indic digits not mixed with Arabic-Indic digits",
                    "Greek KERAIA followed by Greek",
                    "Hebrew GERESH preceded by Hebrew",
                    "Hebrew GERSHAYIM preceded by Hebrew",
                    "KATAKANA MIDDLE DOT with Han",
                    "KATAKANA MIDDLE DOT with Hiragana",
                    "KATAKANA MIDDLE DOT with Katakana",
                    "MIDDLE DOT with surrounding 'l's",
                    "ZERO WIDTH JOINER preceded by Virama",
                    "ZERO WIDTH NON-JOINER not preceded by Virama but matches regexp",
                    "ZERO WIDTH NON-JOINER preceded by Virama",
                    "valid Chinese Punycode",
                ],
            },
        },
    ),
    Departure(
        "control characters without a short escape are not generated",
        NOT_GENERATED,
        {
            "const.json": {
                "nul characters in strings": [
                    "match string with nul",
                ],
            },
            "enum.json": {
                "nul characters in strings": [
                    "match string with nul",
                ],
            },
            "optional/ecmascript-regex.json": {
                "ECMA 262 \\S matches everything but whitespace": [
                    "Non-whitespace control matches",
                ],
                "ECMA 262 \\s matches whitespace": [
                    "Line tabulation matches",
                ],
            },
        },
    ),
    Departure(
        "what strings encode is an annotation, as in later drafts",
        GENERATED | CHECKED_OTHERWISE,
        {
            "optional/content.json": {
                "validation of binary string-encoding": [
                    "an invalid base64 string (% is not a valid character)",
                ],
                "validation of binary-encoded media type documents": [
                    "a validly-encoded invalid JSON document",
                    "an invalid base64 string that is valid JSON",
                ],
                "validation of string-encoded content based on media type": [
                    "an invalid JSON document",
                ],
            },
        },
    ),
    Departure(
        "keywords beside $ref hold in every draft",
        NOT_GENERATED | CHECKED_OTHERWISE,
        {
            "ref.json": {
                "$ref prevents a sibling $id from changing the base uri": [
                    "$ref resolves to /definitions/base_foo, data validates",
                ],
                "ref overrides any sibling keywords": [
                    "ref valid, maxItems ignored",
                ],
            },
        },
    ),
    Departure(
        "an identifier beside $ref counts in every draft, where it is checked",
        CHECKED_OTHERWISE,
        {
            "ref.json": {
                "$ref prevents a sibling $id from changing the base uri": [
                    "$ref resolves to /definitions/base_foo, data does not validate",
                ],
            },
        },
    ),
    Departure(
        "all vocabularies are those of the draft",
        NOT_GENERATED | CHECKED_OTHERWISE,
        {
            "vocabulary.json": {
                "schema that uses custom metaschema with with no validation vocabulary": [
                    "no validation: invalid number, but it still validates",
                ],
            },
        },
    ),
    Departure(
        "control characters without a short escape are not generated, and nothing else matches",
        REFUSED,
        {
            "optional/ecmascript-regex.json": {
                "ECMA 262 regex escapes control codes with \\c and upper letter": [EVERY_ONE],
                "ECMA 262 regex escapes control codes with \\c and lower letter": [EVERY_ONE],
            },
        },
        backend="llguidance",
    ),
    Departure(
        "the schema of schemas is not part of a document",
        REFUSED,
        {
            "defs.json": {"validate definition against metaschema": [EVERY_ONE]},
            "definitions.json": {"validate definition against metaschema": [EVERY_ONE]},
            "ref.json": {"remote ref, containing refs itself": [EVERY_ONE]},
        },
    ),
    Departure(
        "of blanks, outlines generates the space only where a pattern stands",
        NOT_GENERATED,
        {
            "optional/ecmascript-regex.json": {
                "ECMA 262 \\s matches whitespace": [
                    "Character tabulation matches",
                    "Form feed matches",
                    "latin-1 non-breaking-space matches",
                    "line feed matches (line terminator)",
                    "paragraph separator matches (line terminator)",
                    "EM SPACE matches (Space_Separator)",
                ],
            },
        },
        backend="outlines",
    ),
    Departure(
        "outlines gives a lone number no fraction",
        NOT_GENERATED,
        {"type.json": {"number type matches numbers": ["a float is a number"]}},
        backend="outlines",
    ),
]
