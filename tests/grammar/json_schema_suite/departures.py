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
        "formats are checked",
        CHECKED_OTHERWISE,
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
            },
        },
    ),
    Departure(
        "leap seconds, and letters in lower case, are not generated in times",
        NOT_GENERATED,
        {
            "optional/format/date-time.json": {
                "validation of date-time strings": [
                    "a valid date-time with a leap second, UTC",
                    "a valid date-time with a leap second, with minus offset",
                    "case-insensitive T and Z",
                ],
            },
            "optional/format/time.json": {
                "validation of time strings": [
                    "a valid time string with case-insensitive Z",
                    "a valid time string with leap second, Zulu",
                    "valid leap second, large negative time-offset",
                    "valid leap second, large positive time-offset",
                    "valid leap second, negative time-offset",
                    "valid leap second, positive time-offset",
                    "valid leap second, zero time-offset",
                ],
            },
        },
    ),
    Departure(
        "quoted names and addresses are not generated in e-mail addresses",
        NOT_GENERATED,
        {
            "optional/format/email.json": {
                "validation of e-mail addresses": [
                    "a quoted string with a @ in the local part is valid",
                    "a quoted string with a double dot in the local part is valid",
                    "a quoted string with a space in the local part is valid",
                    "an IPv4-address-literal after the @ is valid",
                    "an IPv6-address-literal after the @ is valid",
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
        "what is generated satisfies ECMA-262 and Python's re, with which documents are checked",
        NOT_GENERATED | CHECKED_OTHERWISE,
        {
            "optional/ecmascript-regex.json": {
                "ECMA 262 \\D matches everything but ascii digits": [
                    "NKO DIGIT ZERO (as \\u escape) matches",
                    "NKO DIGIT ZERO matches (unlike e.g. Python)",
                ],
                "ECMA 262 \\W matches everything but ascii letters": [
                    "latin-1 e-acute matches (unlike e.g. Python)",
                ],
                "ECMA 262 \\s matches whitespace": [
                    "zero-width whitespace matches",
                ],
            },
        },
    ),
    Departure(
        "documents are checked with Python's re",
        CHECKED_OTHERWISE,
        {
            "optional/ecmascript-regex.json": {
                "ECMA 262 \\S matches everything but whitespace": [
                    "zero-width whitespace does not match",
                ],
                "ECMA 262 \\d matches ascii digits only": [
                    "NKO DIGIT ZERO (as \\u escape) does not match",
                    "NKO DIGIT ZERO does not match (unlike e.g. Python)",
                ],
                "ECMA 262 \\w matches ascii letters only": [
                    "latin-1 e-acute does not match (unlike e.g. Python)",
                ],
                "\\d in pattern matches [0-9], not unicode digits": [
                    "non-ascii digits (BENGALI DIGIT FOUR, BENGALI DIGIT TWO)",
                ],
                "\\d in patternProperties matches [0-9], not unicode digits": [
                    "non-ascii digits (BENGALI DIGIT FOUR, BENGALI DIGIT TWO)",
                ],
                "\\w in patternProperties matches [A-Za-z0-9_], not unicode letters": [
                    "literal unicode character in json string",
                    "unicode character in hex format in string",
                ],
                "\\w in patterns matches [A-Za-z0-9_], not unicode letters": [
                    "literal unicode character in json string",
                    "unicode character in hex format in string",
                ],
            },
            "optional/format/ecmascript-regex.json": {
                "\\a is not an ECMA 262 control escape": [
                    "when used as a pattern",
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
        "what stands in an annotation is no schema to refer to",
        REFUSED,
        {
            "optional/refOfUnknownKeyword.json": {
                "reference of a root arbitrary keyword ": [EVERY_ONE],
                "reference of an arbitrary keyword of a sub-schema": [EVERY_ONE],
                "reference internals of known non-applicator": [EVERY_ONE],
            },
        },
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
