from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from grammar import structural_tag
from grammar.compiler import GrammarCompiler
from grammar.errors import GrammarTooLarge, InvalidGrammar
from grammar.spec import GrammarSpec
from grammar.structural_tag import (
    AnyText,
    ConstString,
    JsonSchema,
    Or,
    Tag,
    TagsWithSeparator,
    Token,
    TriggeredTags,
    parse,
)
from grammar.vocabulary import Vocabulary
from tests.grammar.walks import accepts, allowed_ids

INT = {"type": "integer"}
ARGUMENTS = {
    "type": "object",
    "properties": {"a": INT},
    "required": ["a"],
    "additionalProperties": False,
}


def tag(begin: str, content: dict[str, Any], end: str | list[str]) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": value}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def document(found: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": found}


TOOLS = {
    "type": "triggered_tags",
    "triggers": ["<tool="],
    "tags": [
        tag("<tool=add>", schema(ARGUMENTS), "</tool>"),
        tag("<tool=say>", {"type": "any_text"}, "</tool>"),
    ],
}
TEXT: dict[str, Any] = {"type": "any_text"}


def token(token_id: object) -> dict[str, Any]:
    return {"type": "token", "token": token_id}


def by_token(**more: Any) -> dict[str, Any]:
    """Calls between special tokens, as the vocabulary of these tests has them."""
    name = {"type": "sequence", "elements": [const("add"), token(BAR), schema(ARGUMENTS)]}
    tags = [{"type": "tag", "begin": token(OPEN), "content": name, "end": token(CLOSE)}]
    return {"type": "token_triggered_tags", "trigger_tokens": [OPEN], "tags": tags} | more


OPEN, BAR, CLOSE = range(275, 278)
CALL = [OPEN, *b"add", BAR, *b'{"a":1}', CLOSE]

CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        document(TOOLS),
        [
            "",
            "no tools <tool",
            'x <tool=add>{"a": 1}</tool> y <tool=say>hi <b></tool>',
            '<tool=add>{"a":1}</tool><tool=add>{"a":2}</tool>',
            "日<tool=say></tool>日",
        ],
        [
            "<tool=",
            "<tool=mul>",
            '<tool=add>{"a": "x"}</tool>',
            '<tool=add>{"a": 1}',
            "<tool=say>never ends",
            'ok <tool=add>{"a":1}</tool> <tool=x',
        ],
    ),
    (
        {
            "structures": [{"begin": "<f>", "schema": INT, "end": "</f>"}],
            "triggers": ["<f"],
        },
        ["text", "<f>1</f>", "a<f>12</f>b<f>3</f>"],
        ["<f", "<f>x</f>", "<f>1"],
    ),
    (
        document(TOOLS | {"at_least_one": True}),
        ["<tool=say></tool>", "<tool=say>x</tool>b<tool=say></tool>c"],
        ["", "text", "a<tool=say>x</tool>", "<tool=say></tool><tool="],
    ),
    (
        document(TOOLS | {"stop_after_first": True}),
        ["text", "a<tool=say></tool>"],
        ["a<tool=say></tool>b", "<tool=say></tool><tool=say></tool>"],
    ),
    (
        document(TOOLS | {"stop_after_first": True, "at_least_one": True}),
        ["<tool=say></tool>", '<tool=add>{"a":1}</tool>'],
        ["text", "", "<tool=say></tool>x"],
    ),
    (
        document({"type": "sequence", "elements": [const("A: "), schema(INT), const("!"), TEXT]}),
        ["A: 12!", "A: 1! and more\n"],
        ["12!", "A: x!", "A: 1"],
    ),
    (
        document({"type": "or", "elements": [const("yes"), schema(INT), tag("<", TEXT, ">")]}),
        ["yes", "-3", "<anything < here>"],
        ["no", "yes3", "<open", "<a>b"],
    ),
    (
        document({"type": "regex", "pattern": "[a-c]+"}),
        ["abc"],
        ["", "d"],
    ),
    (
        document(tag("<n>", {"type": "regex", "pattern": ".*"}, ["</n>", "!"])),
        ["<n>abc</n>", "<n>abc!", "<n></n>", "<n>a!b</n>"],
        ["<n>abc", "abc</n>"],
    ),
    (
        document(
            {
                "type": "tags_with_separator",
                "tags": [tag("<a>", schema(INT), "</a>"), tag("<b>", TEXT, "</b>")],
                "separator": ",",
            }
        ),
        ["", "<a>1</a>", "<b>x</b>,<a>2</a>,<b></b>"],
        ["<a>1</a>,", "<a>1</a><a>2</a>", "x"],
    ),
    (
        document(
            {
                "type": "tags_with_separator",
                "tags": [tag("<a>", schema(INT), "</a>")],
                "separator": "\n",
                "at_least_one": True,
                "stop_after_first": True,
            }
        ),
        ["<a>1</a>"],
        ["", "<a>1</a>\n<a>2</a>"],
    ),
]


@pytest.fixture(scope="module", params=["llguidance", "xgrammar"])
def compiler(vocabulary: Vocabulary, request: pytest.FixtureRequest) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, backends=[request.param], num_workers=0)
    yield compiler
    compiler.close()


@pytest.mark.parametrize(("source", "good", "bad"), CASES)
def test_languages(
    compiler: GrammarCompiler, source: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    compiled = compiler.compile(GrammarSpec("structural_tag", json.dumps(source)))
    for text in good:
        assert accepts(compiled.matcher(), compiler.vocabulary, text), text
    for text in bad:
        assert not accepts(compiled.matcher(), compiler.vocabulary, text), text


def complete(compiler: GrammarCompiler, source: dict[str, Any], token_ids: list[int]) -> bool:
    """Whether they are a complete output; mask and ``accept`` must agree all the way."""
    matcher = compiler.compile(GrammarSpec("structural_tag", json.dumps(source))).matcher()
    for token_id in (*token_ids, min(compiler.vocabulary.eos_token_ids)):
        matcher.forced_tokens()  # which must change nothing
        legal = token_id in allowed_ids(matcher, compiler.vocabulary)
        assert matcher.accept(token_id) == legal
        if not legal:
            return False
    return True


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (
            by_token(),
            [[], [*b"no calls"], CALL, [*b"x", *CALL, *b"y", *CALL], [*CALL, *CALL]],
            [
                [OPEN],
                [BAR],
                [*b"x", CLOSE],
                CALL[:-1],
                [OPEN, *b"sub"],
                [OPEN, *b"add", CLOSE],
                [OPEN, *b"add", BAR, *b'{"a":"', BAR],
                [OPEN, *b"add<|im_start|>"],
            ],
        ),
        (by_token(at_least_one=True), [CALL, [*CALL, *b"x", *CALL]], [[], [*b"x", *CALL]]),
        (by_token(stop_after_first=True), [[], [*b"x", *CALL]], [[*CALL, *CALL], [*CALL, 65]]),
        (by_token(excludes=["<|", "no"]), [[*b"< n"], CALL], [[*b"<|"], [*b"a no"]]),
        (
            {"type": "sequence", "elements": [token(BAR), TEXT | {"excludes": ["b"]}]},
            [[BAR], [BAR, *b"acd"]],
            [[], [*b"a"], [BAR, *b"ab"], [BAR, BAR]],
        ),
        (
            {"type": "tag", "begin": "<", "content": TEXT, "end": token(CLOSE)},
            [[*b"<a", CLOSE], [*b"<", CLOSE], [*b"<>", CLOSE]],
            [[*b"<a"], [*b"<a", OPEN]],
        ),
        (
            {"type": "tag", "begin": token(OPEN), "content": TEXT, "end": ["x", "yy"]},
            [[OPEN, *b"ax"], [OPEN, *b"ayy"], [OPEN, *b"ayx"]],
            [[OPEN, *b"axb"], [OPEN, *b"a"]],
        ),
        (
            {"type": "or", "elements": [token(OPEN), const("a"), token(65)]},
            [[OPEN], [*b"a"], [65]],
            [[BAR], [OPEN, OPEN], [66]],
        ),
    ],
)
def test_tokens_are_asked_for_by_id(
    vocabulary: Vocabulary,
    source: dict[str, Any],
    good: list[list[int]],
    bad: list[list[int]],
) -> None:
    compiler = GrammarCompiler(vocabulary, num_workers=0)
    for token_ids in good:
        assert complete(compiler, document(source), token_ids), token_ids
    for token_ids in bad:
        assert not complete(compiler, document(source), token_ids), token_ids
    compiler.close()


def test_tokens_that_cannot_be_asked_for(vocabulary: Vocabulary) -> None:
    def refused(token_id: int, *backends: str) -> str:
        compiler = GrammarCompiler(vocabulary, backends=backends, num_workers=0)
        tag = {"type": "tag", "begin": token(token_id), "content": schema(INT), "end": "x"}
        with pytest.raises(InvalidGrammar) as caught:
            compiler.compile(GrammarSpec("structural_tag", json.dumps(document(tag))))
        compiler.close()
        assert caught.value.path == "$.format.begin.token"
        return caught.value.message

    assert "ends the output" in refused(min(vocabulary.eos_token_ids), "llguidance")
    assert "no token 300" in refused(300, "llguidance")  # the padding of the logits
    assert "no token 99999" in refused(99_999, "llguidance")
    assert "xgrammar cannot" in refused(OPEN, "xgrammar")


def test_what_tokens_follow_can_be_taken_back(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, num_workers=0)
    matcher = compiler.compile(
        GrammarSpec("structural_tag", json.dumps(document(by_token())))
    ).matcher()
    masks = []
    for token_id in CALL:
        masks.append(allowed_ids(matcher, vocabulary))
        assert matcher.accept(token_id)
    for mask in reversed(masks):
        matcher.rollback(1)
        assert allowed_ids(matcher, vocabulary) == mask
    assert matcher.legal_prefix([OPEN, *b"ad", BAR]) == [OPEN, *b"ad"]
    compiler.close()


@pytest.mark.parametrize(
    "source",
    [
        *(case[0] for case in CASES),
        document(by_token(excludes=["<|"], at_least_one=True)),
        document({"type": "sequence", "elements": [token(1), TEXT | {"excludes": ["a", "b"]}]}),
        document(TOOLS | {"excludes": ["x"]}),
    ],
)
def test_json_form_round_trips(source: dict[str, Any]) -> None:
    tree = parse(source)
    again = parse(structural_tag.to_json(tree))
    assert structural_tag.to_json(again) == structural_tag.to_json(tree)


def test_every_schema_is_found_and_can_be_replaced() -> None:
    parts = [
        tag("<", schema({"const": 0}), ">"),
        {"type": "or", "elements": [schema({"const": 1}), const("a")]},
        {
            "type": "tags_with_separator",
            "tags": [tag("[", schema({"const": 2}), [">", "]"])],
            "separator": ",",
        },
        TOOLS | {"tags": [tag("<tool=", schema({"const": 3}), ">")]},
    ]
    tree = parse(document({"type": "sequence", "elements": parts}))
    assert [node.schema for node in structural_tag.schemas(tree)] == [
        {"const": number} for number in range(4)
    ]
    changed = structural_tag.map_schemas(tree, lambda node: {"not": node.schema})
    assert [node.schema for node in structural_tag.schemas(changed)] == [
        {"not": {"const": number}} for number in range(4)
    ]
    before = structural_tag.map_schemas(changed, lambda node: cast("Any", node.schema)["not"])
    assert before == tree, "nothing else has changed"


def test_all_that_is_found_in_a_tree_is_a_part_of_it() -> None:
    tree = parse(document(tag("<", TEXT, ">") | {"end": token(7)}))
    assert list(structural_tag.walk(tree)) == [tree, Token(7), AnyText()]


def test_the_first_form_is_the_second_in_short() -> None:
    tree = parse(CASES[1][0])
    assert tree == TriggeredTags(
        ("<f",), (Tag("<f>", JsonSchema(INT, "$.structures[0].schema"), ("</f>",)),), False, False
    )


def test_the_first_form_may_say_its_type() -> None:
    assert parse({"type": "structural_tag"} | CASES[1][0]) == parse(CASES[1][0])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (schema(True), JsonSchema(True, "$.format.json_schema")),
        (token(0), Token(0)),
        (TEXT | {"excludes": []}, AnyText()),
        (TEXT | {"excludes": ["a", "bc"]}, AnyText(("a", "bc"))),
        (tag("<", TEXT, [">", "!"]), Tag("<", AnyText(), (">", "!"))),
        # Of alternatives each may run to the end of the output.
        (
            {"type": "or", "elements": [TEXT, const("a")]},
            Or((AnyText(), ConstString("a"))),
        ),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<a", "<b"],
                "tags": [tag("<a>", TEXT, ">"), tag("<b>", TEXT, ">")],
            },
            TriggeredTags(
                ("<a", "<b"),
                (Tag("<a>", AnyText(), (">",)), Tag("<b>", AnyText(), (">",))),
                at_least_one=False,
                stop_after_first=False,
            ),
        ),
        (
            {"type": "tags_with_separator", "tags": [tag("<", TEXT, ">")], "separator": ""},
            TagsWithSeparator((Tag("<", AnyText(), (">",)),), "", False, False),
        ),
    ],
)
def test_what_is_left_out_and_where_free_text_may_stand(
    found: dict[str, Any], expected: structural_tag.Format
) -> None:
    assert parse(document(found)) == expected


def test_a_tag_nested_too_deeply_is_too_large() -> None:
    found = const("a")
    for _ in range(5_000):
        found = {"type": "sequence", "elements": [found]}
    with pytest.raises(GrammarTooLarge, match="nested too deeply"):
        parse(document(found))


@pytest.mark.parametrize(
    ("source", "path", "message"),
    [
        ([], "$", "an object"),
        (document(TEXT) | {"extra": 1}, "$.extra", "not supported"),
        ({"structures": []}, "$.triggers", "an array"),
        ({"triggers": ["a"]}, "$.structures", "an array"),
        (CASES[1][0] | {"type": 5}, "$.type", "a string"),
        (CASES[1][0] | {"extra": 1}, "$.extra", "not supported"),
        (
            {
                "structures": [{"begin": "<f>", "schema": INT, "end": "</f>", "extra": 1}],
                "triggers": ["<f"],
            },
            "$.structures[0].extra",
            "not supported",
        ),
        ({"type": "tags"}, "$.type", "structural_tag"),
        ({"type": "structural_tag"}, "$.format", "an object"),
        (document({"type": "xml"}), "$.format.type", "unknown format 'xml'"),
        (document({}), "$.format.type", "a string"),
        (document(const("a") | {"extra": 1}), "$.format.extra", "not supported"),
        (document({"type": "const_string"}), "$.format.value", "a string"),
        (document({"type": "sequence", "elements": []}), "$.format.elements", "empty"),
        (document({"type": "sequence", "elements": [1]}), "$.format.elements[0]", "an object"),
        (
            document({"type": "sequence", "elements": [TEXT, const("a")]}),
            "$.format.elements[0]",
            "come last",
        ),
        (document(tag("<", TEXT, "")), "$.format.content", "come last"),
        # Only free text that fills its tag ends with it.
        (
            document(tag("<", {"type": "sequence", "elements": [const("a"), TEXT]}, ">")),
            "$.format.content.elements[1]",
            "come last",
        ),
        (
            document(
                {
                    "type": "sequence",
                    "elements": [{"type": "or", "elements": [TEXT, const("a")]}, const("b")],
                }
            ),
            "$.format.elements[0].elements[0]",
            "come last",
        ),
        (
            document(TOOLS | {"triggers": ["<call"]}),
            "$.format.tags[0].begin",
            "none of the triggers",
        ),
        (document(TOOLS | {"triggers": ["<tool=", "<x"]}), "$.format.tags", "trigger '<x'"),
        (document(TOOLS | {"triggers": []}), "$.format.triggers", "non-empty"),
        (document(TOOLS | {"triggers": ["<tool=", ""]}), "$.format.triggers", "non-empty"),
        (document(TOOLS | {"triggers": ["<tool=", 5]}), "$.format.triggers", "non-empty"),
        (document(TOOLS | {"tags": []}), "$.format.tags", "empty"),
        (
            document(TOOLS | {"tags": [{"begin": token(OPEN), "content": TEXT, "end": ">"}]}),
            "$.format.tags[0].begin",
            "token 275 begins with none",
        ),
        (
            document(by_token(tags=[tag("<", TEXT, ">")])),
            "$.format.tags[0].begin",
            "'<' begins with none",
        ),
        (document(TOOLS | {"tags": [const("a")]}), "$.format.tags[0]", "a tag"),
        (
            document({"type": "sequence", "elements": [TOOLS, const("a")]}),
            "$.format.elements[0]",
            "come last",
        ),
        ({"structures": [1], "triggers": ["a"]}, "$.structures[0]", "an object"),
        (document(schema(3)), "$.format.json_schema", "an object"),
        (document(token("<|im_start|>")), "$.format.token", "by its id, got '<|im"),
        (document(token(True)), "$.format.token", "by its id"),
        (document(token(-1)), "$.format.token", "by its id"),
        (
            document(tag("<", TEXT, ">") | {"begin": 5}),
            "$.format.begin",
            "'begin' is to be a string",
        ),
        (document(tag("<", INT, ">") | {"begin": INT}), "$.format.begin.type", "text or a token"),
        (
            document(tag("<", INT, ">") | {"begin": token(1) | {"extra": 1}}),
            "$.format.begin.extra",
            "not supported",
        ),
        (document(by_token(trigger_tokens=[])), "$.format.trigger_tokens", "empty"),
        (document(by_token(trigger_tokens=[OPEN, "x"])), "$.format.trigger_tokens[1]", "by its id"),
        (document(by_token(trigger_tokens=[OPEN, 1])), "$.format.tags", "the token 1"),
        (
            document(by_token(trigger_tokens=[BAR])),
            "$.format.tags[0].begin",
            "token 275 begins",
        ),
        (document(TEXT | {"excludes": "a"}), "$.format.excludes", "an array"),
        (document(TEXT | {"excludes": [""]}), "$.format.excludes", "non-empty strings"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(source: Any, path: str, message: str) -> None:
    with pytest.raises(InvalidGrammar, match=message) as caught:
        GrammarSpec("structural_tag", json.dumps(source)).validate()
    assert caught.value.path == path


def test_schemas_inside_are_checked_in_place() -> None:
    source = document(tag("<", schema({"items": {"type": "int"}}), ">"))
    with pytest.raises(InvalidGrammar) as caught:
        GrammarSpec("structural_tag", json.dumps(source)).validate()
    assert caught.value.path == "$.format.content.json_schema.items.type"
