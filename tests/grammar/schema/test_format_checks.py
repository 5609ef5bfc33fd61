from __future__ import annotations

import subprocess
import sys

import jsonschema
import pytest

from grammar.schema import formats
from grammar.schema.format_checks import CHECKER
from tests.grammar.schema.test_formats import EXAMPLES

LIBRARY = jsonschema.Draft202012Validator.FORMAT_CHECKER


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_what_can_be_generated_passes_and_the_rest_does_not(name: str) -> None:
    good, bad = EXAMPLES[name]
    for text in good:
        assert CHECKER.conforms(text, name), text
    for text in bad:
        assert not CHECKER.conforms(text, name), text


MORE: dict[str, tuple[list[str], list[str]]] = {
    "time": (
        [
            *("23:59:60Z", "23:59:60.5z", "00:29:60-23:30", "01:29:60+01:30", "15:59:60-08:00"),
            "12:00:00.1234567890123+00:00",
        ],
        [
            *(
                "22:59:60Z",
                "23:58:60Z",
                "23:59:60+00:30",
                "23:59:60+24:00",
                "23:60:60Z",
                "22:60:60-00:59",
            ),
            *("23:59:61Z", "23:59:60", "23:59:60xZ", "12:00:00.Z", "24:59:60Z"),
        ],
    ),
    "date-time": (
        ["1998-12-31T23:59:60Z", "1963-06-19t08:30:06.283185z"],
        ["1998-12-31T22:59:60Z", "1998-12-3123:59:59Z", "1998-12-31 23:59:59Z", "1998-12-31", ""],
    ),
    "email": (
        ['"a b"@c', '"a\\"@b"@c.d', "a@[127.0.0.1]", "a@[IPv6:::1]", '""@c'],
        [
            *('"a"b"@c', "a@[127.0.0.256]", "a@[::1]", "a@[IPv6:127.0.0.1]", "a@[127.0.0.1"),
            *("a b@c", "a@", "a@127.0.0.1]", "a@[127.0.0.11"),
        ],
    ),
    "idn-email": (
        ["실례@실례.테스트", "a@b", "\ue000@b"],
        ["실례", "@실례.테스트", f"{'é' * 33}@b"],
    ),
    "hostname": (
        ["xn--9n2bp8q.xn--9t4b11yi5a", "xn--ll-0ea"],
        ["xn--X", "xn--l-fda", "aa--b", "xn--a"],
    ),
    "iri": (
        ["http://ƒøø.ßår/?∂éœ=πîx#πîüx", "urn:x", "http://😀\U000e1000\uffef", "http://a?\ue000"],
        [
            *("âππ", "http://a b", "/é", "é:x", "http://\ue000", "http://\ufff0"),
            *("http://\U0001fffe", "http://\U000f0000", "http://\U000e0100"),
        ],
    ),
    "iri-reference": (["/âππ", "#ƒragmênt", ""], ["#ƒräg\\mênt", "\\\\WINDOWS\\é", "a\u0085"]),
    "uri-template": (
        ["", "http://a/{b}{/c,d:3}{?e*}", "{+a.b}é", "%20{%41_1}", "a{;x:9999}"],
        [
            *("{", "}", "{a", "{}", "{a,}", "{:3}", "{a:0}", "{a:10000}", "{a**}", "{é}", "{éa}"),
            *("%2", "a b", "<"),
        ],
    ),
    "relative-json-pointer": (
        ["0", "1", "0#", "12/a~0/b", "1/"],
        ["", "01", "-1", "/a", "0##", "0#/a", "1a", "1/~2"],
    ),
    "regex": (["a+(?=b)", r"^\p{L}$"], ["^(abc]", "a{2,1}"]),
    "idn-hostname": (
        [
            *("실례.테스트", "l·l", "α͵β", "א׳ב", "ぁ・", "ب٠ب", "क्‍ष", "بي‌بي", "ßς་〇"),
            "xn--9n2bp8q",
        ],
        [
            *("〮한국", "a·l", "α͵S", "A׳ב", "abc・", "ب٠۰", "क‍ष", "\u0300a", "A\u0301", "xn--X"),
            *("éa--é", "-é", "é-", "אa", "aא", "é" * 60, ""),
        ],
    ),
}


@pytest.mark.parametrize("name", sorted(MORE))
def test_what_is_valid_beyond_what_can_be_generated(name: str) -> None:
    good, bad = MORE[name]
    for text in good:
        assert CHECKER.conforms(text, name), text
    for text in bad:
        assert not CHECKER.conforms(text, name), text
    assert CHECKER.conforms(1, name)


def test_every_format_of_the_standard_is_checked() -> None:
    assert set(CHECKER.checkers) == formats.ENFORCED
    assert set(LIBRARY.checkers) <= formats.ENFORCED


@pytest.mark.parametrize("name", ["", "int32", "phone"])
def test_formats_that_nobody_knows_are_annotations(name: str) -> None:
    assert CHECKER.conforms("anything", name)


def test_the_checks_do_not_depend_on_what_is_installed() -> None:
    """The libraries with which ``jsonschema`` checks formats come with our tests only."""
    program = """
import sys
for name in "fqdn isoduration jsonpointer rfc3339_validator rfc3986_validator idna".split():
    sys.modules[name] = None
import jsonschema
from grammar.spec import GrammarSpec
from grammar.validation import validate
assert "date-time" not in jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers
spec = GrammarSpec.from_schema({"items": {"enum": ["2024-02-30T00:00:00Z"], "format": "date-time"}})
assert validate(spec, "[]").passed
assert not validate(spec, '["2024-02-30T00:00:00Z"]').passed
assert not validate(GrammarSpec.from_schema({"format": "idn-hostname"}), '"xn--x"').passed
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
