from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenants.errors import AuthenticationFailed, InvalidValue
from tenants.keys import KEY_LENGTH, hash_key, is_public_id, mint, parse

PEPPER = b"a pepper for the tests"
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
KEY = mint(PEPPER).text
positions = st.integers(0, len(KEY) - 1)


def test_minted_key_has_the_documented_form() -> None:
    assert re.fullmatch(r"sk-slc-[0-9A-Za-z]{12}-[0-9A-Za-z]{40}-[0-9A-Za-z]{6}", KEY)
    assert len(KEY) == KEY_LENGTH


def test_minted_key_parses_and_hashes_to_what_is_stored() -> None:
    for _ in range(200):
        minted = mint(PEPPER)
        parsed = parse(minted.text)
        assert (parsed.text, parsed.public_id) == (minted.text, minted.public_id)
        assert minted.key_hash == hash_key(minted.text, PEPPER)
        assert is_public_id(minted.public_id)


def test_checksum_is_stable() -> None:
    """Keys that are out there must go on parsing: the form is a promise."""
    text = "sk-slc-AbCdEfGhIjKl-" + "0123456789" * 4 + "-0q1Z80"
    with pytest.raises(AuthenticationFailed, match="malformed"):
        parse(text[:-1] + "1")
    assert parse(text).public_id == "AbCdEfGhIjKl"


def test_digits_are_uniform() -> None:
    """A modulo of a byte would favour the first 8 of 62 digits by a quarter."""
    counts = Counter("".join(mint(PEPPER).text.split("-")[3] for _ in range(2_000)))
    expected = 2_000 * 40 / 62
    assert set(counts) == set(BASE62)
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_squared < 140  # 61 degrees of freedom: p < 1e-7


def test_no_two_keys_are_alike() -> None:
    minted = [mint(PEPPER) for _ in range(1_000)]
    assert len({key.text for key in minted}) == 1_000
    assert len({key.public_id for key in minted}) == 1_000


@given(positions, st.characters())
@example(0, "S")
@example(len(KEY) - 1, "\n")
@example(len(KEY) - 1, "\u0661")  # a digit, but not one of ours
def test_any_wrong_character_is_found_without_a_query(position: int, character: str) -> None:
    corrupted = KEY[:position] + character + KEY[position + 1 :]
    if corrupted != KEY:
        with pytest.raises(AuthenticationFailed, match="malformed"):
            parse(corrupted)


def test_every_base62_typo_is_found_without_a_query() -> None:
    for position in range(len(KEY)):
        for character in BASE62:
            corrupted = KEY[:position] + character + KEY[position + 1 :]
            if corrupted != KEY:
                with pytest.raises(AuthenticationFailed, match="malformed"):
                    parse(corrupted)


@given(positions, positions)
def test_transposition_is_found(one: int, other: int) -> None:
    characters = list(KEY)
    characters[one], characters[other] = characters[other], characters[one]
    swapped = "".join(characters)
    if swapped != KEY:
        with pytest.raises(AuthenticationFailed, match="malformed"):
            parse(swapped)


@given(positions)
def test_cut_key_is_found(length: int) -> None:
    with pytest.raises(AuthenticationFailed, match="malformed"):
        parse(KEY[:length])


@given(st.text())
@example(KEY + "\n")
@example(" " + KEY)
@example(KEY + "\0")
@example("Bearer " + KEY)
@example(KEY * 2)
@example("sk-slc-")
@example("\ud800" * 70)
def test_garbage_is_malformed_and_never_an_accident(text: str) -> None:
    with pytest.raises(AuthenticationFailed, match="malformed"):
        parse(text)


@given(st.binary(min_size=16), st.binary(min_size=16))
def test_hash_depends_on_the_pepper(one: bytes, other: bytes) -> None:
    assert (hash_key(KEY, one) == hash_key(KEY, other)) == (
        # HMAC pads short keys with zeros: only such a pair may agree.
        one.rstrip(b"\0") == other.rstrip(b"\0")
    )


def test_hash_is_hmac_sha256_of_the_whole_key() -> None:
    assert hash_key(KEY, PEPPER) == hmac.new(PEPPER, KEY.encode(), hashlib.sha256).digest()
    assert len(hash_key(KEY, PEPPER)) == 32


@pytest.mark.parametrize("pepper", [b"", bytes(15)])
def test_short_pepper_is_refused(pepper: bytes) -> None:
    with pytest.raises(InvalidValue, match="pepper: needs at least 16 bytes"):
        mint(pepper)
    with pytest.raises(InvalidValue, match="pepper"):
        hash_key(KEY, pepper)


def test_repr_hides_the_secret() -> None:
    minted = mint(PEPPER)
    secret = minted.text.split("-")[3]
    for shown in (repr(minted), repr(parse(minted.text)), repr(replace(minted, public_id="x"))):
        assert secret not in shown
        assert repr(minted.key_hash) not in shown


@given(st.text())
@example("A" * 12 + "\n")
@example("é" * 12)
def test_is_public_id(text: str) -> None:
    assert is_public_id(text) == (len(text) == 12 and all(c in BASE62 for c in text))
