from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar.schema import ecma
from grammar.schema.patterns import MAX_EXPANDED_SIZE, Pattern, PatternError, literal
from tests.grammar.schema.rust import rust_matches

# Characters on which the dialects disagree, and their neighbours.
CHARS = (
    'aAzZ_09-.^$ \t\n\r\x0b\x0c\x1c\x1f\x85\xa0é日١²\u0300\u2028\u3000\ufeff\U0001f600"\\\x7f\x01/'
)


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ("foo", ["foo", "xfooy", "a\nfoo"], ["fo"]),
        ("^foo$", ["foo"], ["xfoo", "foox", "foo\n"]),
        ("^foo", ["foo", "foox\n"], ["xfoo"]),
        ("foo$", ["foo", "\nfoo"], ["foox"]),
        ("", ["", "a\n"], []),
        ("^$", [""], ["a", "\n"]),
        ("^a|b$", ["a", "ax", "xb"], ["xa", "bx"]),
        ("(^a|b)c", ["ac", "acx", "xbc"], ["xac", "b"]),
        ("c(a$|b)", ["ca", "xca", "cbx"], ["cax"]),
        ("(^a|b)x(c$|d)", ["axc", "ybxc", "axdz"], ["yaxc", "axcz"]),
        ("^(a|b)*$", ["", "abba"], ["c"]),
        (r"^(?:ab){2,3}$", ["abab", "ababab"], ["ab", "abababab"]),
        ("^a{2,}$", ["aa", "aaaaa"], ["a"]),
        ("^a{2}?b+?c*?$", ["aab", "aabbcc"], ["ab"]),
        (r"^\d+$", ["12"], ["١", "a", ""]),
        (r"^\D$", ["a"], ["1", "١"]),
        (r"^\w$", ["a", "_"], ["-"]),
        (r"^\W$", ["-", " "], ["a", "é", "²"]),
        (r"^\s$", [" ", "\t", "\u3000"], ["a", "\x1c", "\ufeff"]),
        (r"^\S$", ["a", "é"], [" ", "\x1c", "\ufeff"]),
        (r"^.$", ["a", "é"], ["\n", "\r", "\u2028"]),
        (r"^[^a]$", ["b", "\n", '"'], ["a"]),
        (r"^[^\d\s]$", ["a"], ["1", "١", " ", "\x1c"]),
        (r"^[\w.-]+@[\w-]+\.[a-z]{2,}$", ["a.b@c.de"], ["a@b", "@c.de"]),
        (r"^[a\-z\]]$", ["a", "-", "]", "z"], ["b"]),
        (r"^[\b\n]$", ["\b", "\n"], ["b"]),
        (r"^\x41\u0042\0\/\-\.$", ["AB\0/-."], ["AB"]),
        ("^{a}]$", ["{a}]"], ["a"]),
        ("^[&~#\\[-]$", ["&", "[", "-"], ["\\"]),
        ("^日+é$", ["日日é"], ["é"]),
        (r"^\p{L}+$", ["é日a"], ["a1", ""]),
        (r"^\P{Lu}$", ["a", "1"], ["A", "É"]),
        (r"^[\p{Nd}\p{sc=Greek}-]+$", ["1-λ"], ["l"]),
        (r"^[^\p{Letter}\P{gc=Lu}]$", [], ["A", "a", "1", "\u0378"]),
        (r"^[^\P{General_Category=Uppercase_Letter}]$", ["A"], ["a", "1"]),
        (r"^(?<year>\d{4})$", ["2026"], ["1"]),
        (r"^\u{1f600}\cJ$", ["\U0001f600\n"], ["u"]),
    ],
)
def test_patterns_mean_what_they_say(source: str, good: list[str], bad: list[str]) -> None:
    expression = Pattern.parse(source).full
    for text in good:
        assert rust_matches(expression, text), text
        assert ecma.matches(source, text), text
    for text in bad:
        assert not rust_matches(expression, text), text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("(?=a)b", "look-around"),
        ("(?!a)b", "look-around"),
        ("(?<=a)b", "look-around"),
        ("(?P<n>a)", "look-around or flags"),
        ("(?i:a)", "flags"),
        ("(?>a)", "look-around or flags"),
        (r"a\b", "word boundary"),
        (r"(a)\1", "back-reference"),
        (r"\07", "back-reference"),
        (r"\p{Emoji}", "the property 'Emoji' at position 0"),
        (r"[\P{Any}]", "the property 'Any'"),
        (r"\pL", "not a regular expression"),
        (r"(?<n>a)\k<n>", "the escape"),
        ("a(", "not a regular expression"),
        ("a++", "repeated repetition"),
        ("a{,3}", r"\{0,n\}"),
        ("(^a)*", "repeated anchor"),
        ("a^b", "anchor in the middle"),
        ("a$b", "anchor in the middle"),
        ("$^", "anchor in the middle"),
        ("^(^a)b", "anchor in the middle"),
        ("[]a]", r"\]"),
        ("[a-\\d]", "bad"),
        ("\\ud83d", "surrogate"),
        (r"\A", "the escape"),
        ("(" * 5000 + ")" * 5000, "nested too deeply|not a regular"),
        ("([a-z]{1,100}){1,100}", "expand to 10000"),
        (f"a{{{MAX_EXPANDED_SIZE + 1}}}", "expand to"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_the_reason(source: str, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        Pattern.parse(source)


@pytest.mark.parametrize(
    ("source", "prefix"), [("^ab[c]", "ab"), ("ab", ""), ("^a*b", ""), ("^a|b", ""), ("^x-", "x-")]
)
def test_prefix(source: str, prefix: str) -> None:
    assert Pattern.parse(source).prefix == prefix


@pytest.mark.parametrize("source", ['"', r"\\", r"\n", r"[\s\S]", r"\D", r"[!-~]", r"[^\w]"])
def test_no_json_form_where_it_would_take_an_escape(source: str) -> None:
    assert Pattern.parse(source).json is None


ATOMS = ["a", "Z", "0", "_", "é", " ", "-", ".", r"\.", r"\/", r"\n", "[a-z]", "[^a-z]"]
ATOMS += [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"[\d_]", r"[^\d_]", r"[^\w]", r"[^\s]"]
ATOMS += [r"[\W\d]", r"[^\D]", r"[^\S]", r"\p{L}", r"\P{N}", r"[^\p{Ll}]", r"[\P{L}_]"]
atoms = st.sampled_from(ATOMS)


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map("(?:{})".format)
    quantified = st.tuples(group, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}"]))
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join).map("({})".format),
        quantified.map("".join),
    )


bodies = st.recursive(atoms, combine, max_leaves=6)
patterns = st.tuples(st.sampled_from(["^", ""]), bodies, st.sampled_from(["$", ""])).map("".join)


@given(patterns, st.lists(st.text(CHARS, max_size=5), max_size=12))
def test_every_match_also_matches_in_python(source: str, texts: list[str]) -> None:
    pattern = Pattern.parse(source)
    for text in texts:
        if rust_matches(pattern.full, text):
            assert ecma.matches(source, text), text
        # In ASCII the readings agree, up to Python's "$" before a final newline and \x1c-\x1f.
        elif text.isascii() and not set(text) & set("\n\r\x1c\x1f"):
            assert not ecma.matches(source, text), text


@given(patterns, st.lists(st.text(CHARS, max_size=5), max_size=12))
def test_the_json_form_matches_the_text_in_the_document(source: str, texts: list[str]) -> None:
    pattern = Pattern.parse(source)
    if pattern.json is None:
        return
    for text in texts:
        quoted = json.dumps(text, ensure_ascii=False)[1:-1]
        if rust_matches(pattern.json, quoted):
            assert quoted == text
            assert rust_matches(pattern.full, text)


@given(st.text(CHARS, max_size=6))
def test_a_literal_matches_itself_only(text: str) -> None:
    expression = Pattern.parse(f"^{literal(text)}$").full
    assert rust_matches(expression, text)
    assert not rust_matches(expression, text + "a")


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    limit = sys.getrecursionlimit()
    with pytest.raises(PatternError):
        Pattern.parse("(?:" * limit + "a" + ")" * limit)


@pytest.mark.parametrize(
    ("source", "is_exact"),
    [
        ("^ab+[c-e]{2}(f|g)", True),
        ("[^a]", True),
        ("ab$", False),
        ("^(a|b.)", False),
        (r"(\d)*", False),
        (r"x[a\w]", False),
        (r"\p{L}", False),
        (r"[^\s]", False),
    ],
)
def test_where_the_two_readings_agree_is_known(source: str, is_exact: bool) -> None:
    assert Pattern.parse(source).exact is is_exact


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("", 0),
        ("^a$", 1),
        ("a.[b-d]", 3),
        (r"\d\p{L}\n", 3),
        ("(ab|cde)", 5),
        ("(ab){3}", 6),
        ("(ab){3,7}", 14),
        ("(ab){3,}", 6),
        ("(ab){0}", 2),
        ("(ab)*", 2),
        ("(){9}", 9),
    ],
)
def test_size_is_that_of_all_repetitions_written_out(source: str, size: int) -> None:
    assert Pattern.parse(source).size == size


@pytest.mark.parametrize(
    ("source", "full", "json"),
    [
        ("^[^a]$", "[^a]", r'[^a"\\\x00-\x1f\x7f]'),
        ("^[a-cé]$", "[a-cé]", "[a-cé]"),
        ('^["]$', '["]', None),
        (r"^[\wé]$", "[0-9A-Za-z_é]", "[0-9A-Za-z_é]"),
        (r"^[^\d]$", r"[^\p{Nd}]", None),
    ],
)
def test_a_class_is_the_narrower_reading_and_its_negation_that_of_the_wider(
    source: str, full: str, json: str | None
) -> None:
    pattern = Pattern.parse(source)
    assert (pattern.full, pattern.json) == (full, json)
