"""The same documents whatever the tokenizer: those of all kinds of models, each trained here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from engine.text.tokenizer import Tokenizer
from grammar.compiler import GrammarCompiler
from grammar.spec import GrammarSpec
from grammar.vocabulary import Vocabulary
from tests.grammar.walks import Walker, accepts

SPECIAL = ["<unk>", "<s>", "</s>"]
SCHEMAS: list[Any] = [
    {"type": "object"},
    {"type": "object", "properties": {"a b": {"type": "string"}}, "required": ["a b"]},
    {"type": "string", "pattern": "^[é日😀a]{2,5}$"},
    {"type": "string", "maxLength": 4},
    {"enum": ["the cat", " the  cat", "日本", 'say "😀"', -1.5, None]},
    {"type": "array", "items": {"type": "number", "minimum": -3, "multipleOf": 0.5}},
    {"type": "object", "patternProperties": {"^é": {"const": True}}, "maxProperties": 2},
]
DOCUMENTS: list[Any] = [
    {"a b": "the cat"},
    {"a b": 'tab\\t "quoted" \\\\ é日😀'},
    {"é": True},
    {"é": False},
    "日é",
    "aaaaa",
    " the  cat",
    'say "😀"',
    [-2.5, 10, 0],
    [-4, 0.25],
]
CORPUS = [json.dumps(value, ensure_ascii=False) for value in DOCUMENTS] * 20 + ["the cat sat"] * 50


def _trained(pre_tokenizer: Any, decoder: Any, **options: Any) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoder
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, show_progress=False, **options
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def byte_level() -> Backend:
    """As GPT-2's and Qwen's."""
    return _trained(
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )


def tiktoken_like() -> Backend:
    """As Llama 3's: pieces by a regex that joins punctuation, blanks and line breaks."""
    pieces = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
    split = pre_tokenizers.Split(Regex(pieces), "isolated")
    return _trained(
        pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)]),
        decoders.ByteLevel(),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )


def sentencepiece() -> Backend:
    """As Llama 2's: blanks are part of the pieces, and what no piece has is written in bytes."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    trained = _trained(
        pre_tokenizers.Metaspace(prepend_scheme="never"),
        decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)]),
    )
    model = json.loads(trained.to_str())["model"]
    rare = ("日", "😀")
    pieces = [piece for piece in model["vocab"] if not any(char in piece for char in rare)]
    merges = [tuple(pair) for pair in model["merges"]]
    kept = [pair for pair in merges if not any(char in "".join(pair) for char in rare)]
    names = [*pieces, *(f"<0x{byte:02X}>" for byte in range(256))]
    ids = {name: i for i, name in enumerate(dict.fromkeys(names))}
    found = Backend(models.BPE(ids, kept, byte_fallback=True))
    found.pre_tokenizer, found.decoder = trained.pre_tokenizer, trained.decoder
    found.add_special_tokens(SPECIAL)
    return found


Made = tuple[Tokenizer, Vocabulary]


@pytest.fixture(
    scope="module", params=[byte_level, tiktoken_like, sentencepiece], ids=lambda f: f.__name__
)
def made(request: pytest.FixtureRequest) -> Made:
    build: Callable[[], Backend] = request.param
    backend = build()
    end = backend.token_to_id("</s>")
    assert end is not None
    tokenizer = Tokenizer(backend, eos_token_ids=frozenset({end}))
    return tokenizer, Vocabulary(
        tokenizer.vocabulary(), tokenizer.eos_token_ids, tokenizer.special_ids, tokenizer.vocab_size
    )


@pytest.mark.parametrize(
    "backend", ["llguidance", pytest.param("xgrammar", marks=pytest.mark.nightly)]
)
def test_every_document_is_valid_and_every_valid_one_is_taken(made: Made, backend: str) -> None:
    tokenizer, vocabulary = made
    compiler = GrammarCompiler(vocabulary, backends=[backend], num_workers=0)
    ended = 0
    for number, schema in enumerate(SCHEMAS):
        validator = jsonschema.Draft202012Validator(schema)
        compiled = compiler.compile(GrammarSpec.from_schema(schema, strict=False))
        walker = Walker(vocabulary, number)
        for _ in range(4):
            sampled = walker.walk(compiled.matcher())
            if sampled is not None and not compiled.unenforced:
                ended += 1
                assert validator.is_valid(json.loads(sampled)), (schema, sampled)
        for document in DOCUMENTS:
            text = json.dumps(document, ensure_ascii=False)
            expected = validator.is_valid(document)
            if expected or not compiled.unenforced:
                assert accepts(compiled.matcher(), vocabulary, text) == expected, (schema, text)
            # As the model was trained to write it, and as its text is read.
            matcher = compiled.matcher()
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == text
            if expected:
                assert all(map(matcher.accept, ids)), (schema, text)
    compiler.close()
    assert ended > (15 if backend == "llguidance" else 5)


def test_their_tokens_are_pieces_of_characters_words_and_documents(made: Made) -> None:
    _, vocabulary = made
    tokens = [token for token in vocabulary.tokens if token]
    assert max(map(len, tokens)) > 3
    assert {bytes([byte]) for byte in range(256)} <= set(tokens)
    assert any(token.startswith(b" t") for token in tokens)
