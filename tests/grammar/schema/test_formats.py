from __future__ import annotations

import ipaddress
import random
import re

import jsonschema
import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar.schema import format_checks, formats
from tests.grammar.schema.rust import rust_matches, rust_samples

CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER

EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "date": (
        ["2024-02-29", "2000-02-29", "2023-12-31", "0001-01-01", "9999-04-30"],
        [
            "2023-02-29",
            "1900-02-29",
            "2023-04-31",
            "2023-00-10",
            "0000-01-01",
            "23-01-01",
            "2023-1-1",
        ],
    ),
    "time": (
        ["00:00:00Z", "23:59:59.123+05:30", "23:59:60z", "15:59:60.123-08:00", "01:29:60+01:30"],
        ["24:00:00Z", "12:00:00", "12:00:60Z", "12:00:00+24:00", "12:00Z", "00:59:60+00:30"],
    ),
    "date-time": (
        ["2024-02-29T12:00:00Z", "1985-04-12T23:20:50.52-08:00", "1998-12-31t23:59:60z"],
        ["2023-02-29T12:00:00Z", "2024-02-29 12:00:00Z", "2024-02-29T12:00:00"],
    ),
    "duration": (
        ["P1Y2M3DT4H5M6S", "PT0S", "P4W", "P1M", "PT1M"],
        ["P", "PT", "P1DT", "1D", "P1W2D"],
    ),
    "email": (
        ["a@b", "a.b+c@d.example", '"a b"@c', '"@\\""@c', "a@[127.0.0.1]", "a@[IPv6:::1]"],
        ["a", "@b", "a@", "a..b@c", "a b@c", "a@-b", '"a"b"@c', "a@[::1]", "a@xn--x"],
    ),
    "idn-email": (
        ["실례@실례.테스트", "a.b@c", "é@[127.0.0.1]"],
        ["실례", "@실례.테스트", "é@〮한국"],
    ),
    "hostname": (
        ["a", "a-b.example.com", "1.2", "a--b.c", "ab-c-d"],
        ["", "-a", "a-", "a_b", "a..b", "a" * 64, ".a", "ab--c", "xn--x", "XN--aa---o47jg78q"],
    ),
    "idn-hostname": (
        ["a-b.example.com", "실례.테스트", "bücher。de"],
        ["", "-a", "〮한국", "xn--x", "a..b", "é" * 64],
    ),
    "ipv4": (["0.0.0.0", "255.249.199.9"], ["256.0.0.1", "01.2.3.4", "1.2.3", "1.2.3.4.5"]),
    "ipv6": (
        [
            *(
                "::",
                "::1",
                "1::",
                "1:2:3:4:5:6:7:8",
                "1:2::7:8",
                "::2:3:4:5:6:7:8",
                "1:2:3:4:5:6:7::",
            ),
            *("::1.2.3.4", "::ffff:1.2.3.4", "64:ff9b::1.2.3.4", "1:2:3:4:5:6:7.8.9.0"),
            *("1:2:3:4:5::1.2.3.4", "::1:2:3:4:5:6.7.8.9", "1:2::4:5:6.7.8.9"),
        ],
        [
            *(":", "1::2::3", "1:2:3:4:5:6:7", "12345::", "1:2:3:4:5:6:7:8:9", "::1%eth0"),
            *("1.2.3.4", "::01.2.3.4", "::1.2.3", "1:2:3:4:5:6:7:1.2.3.4", "1:2:3:4:5:1.2.3.4"),
            *("1:2:3:4:5:6::1.2.3.4", "1::2::1.2.3.4", "::1.2.3.4:5"),
        ],
    ),
    "uuid": (
        ["123e4567-E89B-12d3-a456-426614174000"],
        ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400"],
    ),
    "uri": (
        [
            *("http://a.b/c?d=e#f", "urn:x:y", "http://[::1]:80/", "mailto:a@b", "a:"),
            "http://[v1.fe:]",
        ],
        ["a", "/b", "http://a b", "1:x", "http://[1]/", "http://%zz"],
    ),
    "uri-reference": (["", "a/b", "//a", "?x", "#", "http://a"], ["a b", "\\", "#a#b"]),
    "iri": (["http://ƒøø.ßår/?∂éœ=πîx#πîüx", "urn:x"], ["âππ", "http://a b", "http://\ue000"]),
    "iri-reference": (["/âππ", "#ƒragmênt", ""], ["#ƒräg\\mênt", "\\\\WINDOWS\\é", "a\x85"]),
    "uri-template": (
        ["", "http://a/{b}{/c,d:3}{?e*}", "{+a.b}é", "%20{%41_1}", "a{;x:9999}", "it's"],
        ["{", "}", "{}", "{a,}", "{:3}", "{a:0}", "{a:10000}", "{a**}", "{é}", "%2", "a b"],
    ),
    "json-pointer": (["", "/", "/a/b~0c~1", "/é\n"], ["a", "/~", "/~2"]),
    "relative-json-pointer": (["0", "1", "0#", "12/a~0/b", "1/"], ["", "01", "-1", "/a", "0##"]),
    "regex": (["", "^a+$", r"[a\d]*(b|\.(?:c)?)"], ["(", "a**", "*", "[", "?a", "\\"]),
}


# What ``jsonschema`` has no check for, and what its checks get wrong: leap seconds, and numbers of
# which a digit follows a zero.
NOT_IN_THE_LIBRARY = ("iri", "iri-reference", "uri-template")
WRONG_IN_THE_LIBRARY = {
    **dict.fromkeys(("time", "date-time"), re.compile(":60")),
    "relative-json-pointer": re.compile("^[0-9]{2}"),
    **dict.fromkeys(("uri", "uri-reference"), re.compile(r"\[[vV]")),
}


def accepts(name: str, text: str) -> bool:
    found = formats.lookup(name)
    assert found is not None
    fits = found.max_length is None or len(text) <= found.max_length
    return fits and all(rust_matches(each, text) for each in found.pattern.full)


def is_valid_elsewhere(name: str, text: str) -> bool:
    """Whether ``jsonschema`` and ``jsonschema-rs`` take it, as far as they know."""
    wrong = WRONG_IN_THE_LIBRARY.get(name)
    if name not in NOT_IN_THE_LIBRARY and (wrong is None or wrong.search(text) is None):
        assert name in CHECKER.checkers
        if not CHECKER.conforms(text, name):
            return False
    return RUST[name].is_valid(text)


RUST = {
    name: jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True)
    for name in formats.ENFORCED
}


def test_every_format_has_examples() -> None:
    assert set(EXAMPLES) == formats.ENFORCED


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples(name: str) -> None:
    good, bad = EXAMPLES[name]
    for text in good:
        assert accepts(name, text), text
        assert is_valid_elsewhere(name, text), text
    for text in bad:
        assert not accepts(name, text), text


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_random_matches_are_valid(name: str) -> None:
    found = formats.lookup(name)
    assert found is not None
    (expression,) = found.pattern.full
    samples = [s for s in rust_samples(expression, random.Random(name), 80) if accepts(name, s)]
    assert len(samples) > 20
    for text in samples:
        assert is_valid_elsewhere(name, text), text
        assert format_checks.CHECKER.conforms(text, name), text


@given(st.dates())
def test_every_real_date_is_a_date(date: object) -> None:
    assert accepts("date", str(date))


@given(st.ip_addresses(v=6))
def test_every_ipv6_address_is_accepted(address: object) -> None:
    assert accepts("ipv6", str(address))


def test_an_ipv6_address_leaves_out_groups_in_one_place_or_none() -> None:
    for left in range(9):
        assert accepts("ipv6", ":".join(["1"] * left)) == (left == 8)
        for right in range(9):
            text = f"{':'.join(['1'] * left)}::{':'.join(['f'] * right)}"
            assert accepts("ipv6", text) == CHECKER.conforms(text, "ipv6") == (left + right < 8)


@settings(max_examples=20)
@given(st.ip_addresses(v=6), st.ip_addresses(v=4))
def test_their_last_groups_may_be_an_ipv4_address(
    address: ipaddress.IPv6Address, last: ipaddress.IPv4Address
) -> None:
    groups = address.exploded.split(":")[:6]
    assert accepts("ipv6", f"{':'.join(groups)}:{last}")
    for start in range(6):
        for end in range(start + 1, 7):
            short = f"{':'.join(groups[:start])}::{':'.join([*groups[end:], str(last)])}"
            assert accepts("ipv6", short), short


@pytest.mark.parametrize("name", ["int32", "url", "host-name", ""])
def test_other_formats_are_annotations(name: str) -> None:
    assert formats.lookup(name) is None


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_exact_format_is_all_that_is_valid(name: str) -> None:
    found = formats.lookup(name)
    assert found is not None
    if not found.is_exact:
        return
    rng = random.Random(name)
    (expression,) = found.pattern.full
    for text in rust_samples(expression, rng, 60):
        place = rng.randrange(len(text) + 1)
        near = (
            text[:place]
            + rng.choice(["", "0", "/", "-", ":", "é", "%", "#", " "])
            + text[place + 1 :]
        )
        assert formats.matches(name, near) == format_checks.CHECKER.conforms(near, name), near


def test_lengths_are_part_of_two_formats() -> None:
    host = ".".join(["a" * 60] * 5)
    found = formats.lookup("hostname")
    assert found is not None
    assert re.search(found.pattern.full[0], host)
    assert not accepts("hostname", host)
    assert not CHECKER.conforms(host, "hostname")
    longest = host[:253]
    assert accepts("hostname", longest)
    assert not accepts("hostname", longest + "a")
    assert accepts("email", "a@" + host[:252])
    assert not accepts("email", "a@" + host[:253])
