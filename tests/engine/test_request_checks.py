"""What could never run is refused by its field; what is accepted fits."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidRequest
from engine.messages import GenerateRequest, Image
from engine.request_checks import RequestChecks
from engine.sampling_params import SamplingParams
from engine.vision import SHARED_MEMORY, Vision, with_pixels

VOCAB_SIZE = 50
IMAGE_TOKEN = 40
PARAMS = frozenset(SamplingParams.__struct_fields__)


def make_checks(
    max_model_len: int = 20,
    max_cached_tokens: int = 1000,
    max_logprobs: int = 20,
    vision: Vision | None = None,
) -> RequestChecks:
    return RequestChecks(
        vocab_size=VOCAB_SIZE,
        max_model_len=max_model_len,
        max_cached_tokens=max_cached_tokens,
        max_logprobs=max_logprobs,
        vision=vision,
    )


def request(prompt: list[int], **options: Any) -> GenerateRequest:
    params = {name: options.pop(name) for name in [*options] if name in PARAMS}
    return GenerateRequest(
        request_id="a", prompt_token_ids=prompt, params=SamplingParams(**params), **options
    )


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "prompt_token_ids is empty"),
        ([1, 50], {}, r"prompt_token_ids must be in \[0, 50\), got 1 to 50"),
        ([-1, 3], {}, r"prompt_token_ids must be in \[0, 50\), got -1 to 3"),
        ([1] * 20, {}, "prompt_token_ids has 20 tokens, but max_model_len leaves room for 19"),
        ([1] * 10, {"max_tokens": 11}, "max_tokens is 11, but .* max_model_len leaves room for 10"),
        ([1], {"stop_token_ids": (50,)}, "stop_token_ids must be in"),
        ([1], {"logit_bias": {50: 1.0}}, r"logit_bias must be in \[0, 50\), got 50 to 50"),
        ([1], {"allowed_token_ids": [-1, 2]}, "allowed_token_ids must be in .* got -1 to 2"),
        ([1], {"bad_words_token_ids": [[1, 50]]}, "bad_words_token_ids must be in"),
        ([1], {"logprobs": 21}, "logprobs is 21, but max_logprobs allows at most 20"),
        ([1], {"logprobs": -1}, "logprobs is -1, but max_logprobs allows at most 20"),
        ([1], {"prompt_logprobs": 21}, "prompt_logprobs is 21, but max_logprobs allows at most"),
        ([1], {"n": 2}, "n must be 1 here, got 2: send a request for each"),
        ([1], {"bad_words": ["x"]}, "bad_words must come with bad_words_token_ids"),
        ([1, 2], {"num_public_tokens": 3}, r"num_public_tokens must be in \[0, 2\], got 3"),
        ([1, 2], {"num_public_tokens": -1}, r"num_public_tokens must be in \[0, 2\], got -1"),
        ([1], {"max_cached_blocks": {"a": 5, "b": -1}}, "max_cached_blocks must not be below 0"),
        ([1], {"num_granted_tokens": -1}, "num_granted_tokens must not be below 0, got -1"),
        ([1], {"weight": 0.0}, "weight must be a positive number, got 0.0"),
        ([1], {"weight": float("nan")}, "weight must be a positive number, got nan"),
        ([1], {"weight": float("inf")}, "weight must be a positive number, got inf"),
    ],
)
def test_what_is_refused(prompt: list[int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make_checks().check(request(prompt, **options))


def test_the_limit_that_is_met_is_the_one_that_is_named() -> None:
    with pytest.raises(InvalidRequest, match="the size of the KV cache leaves room for 3"):
        make_checks(max_cached_tokens=12).check(request([1] * 10, max_tokens=4))
    with pytest.raises(InvalidRequest, match="max_model_len leaves room for 3"):
        make_checks(max_model_len=13).check(request([1] * 10, max_tokens=4))


@pytest.mark.parametrize(("max_logprobs", "asked"), [(50, -1), (-1, -1), (0, 0), (3, 3)])
def test_as_many_logprobs_as_there_may_be(max_logprobs: int, asked: int) -> None:
    checks = make_checks(max_logprobs=max_logprobs)
    checks.check(request([1], logprobs=asked, prompt_logprobs=asked))


@given(
    max_model_len=st.integers(2, 40),
    max_cached_tokens=st.integers(1, 40),
    num_prompt=st.integers(1, 45),
    max_tokens=st.none() | st.integers(1, 45),
)
def test_what_is_accepted_fits_and_what_fits_is_accepted(
    max_model_len: int, max_cached_tokens: int, num_prompt: int, max_tokens: int | None
) -> None:
    """Of the model, all tokens; of the cache, all but the last one, which nothing reads."""
    checks = make_checks(max_model_len, max_cached_tokens)
    at_least = num_prompt + (1 if max_tokens is None else max_tokens)
    fits = at_least <= max_model_len and at_least - 1 <= max_cached_tokens
    try:
        checks.check(request([1] * num_prompt, max_tokens=max_tokens))
    except InvalidRequest:
        assert not fits
    else:
        assert fits
        assert at_least <= checks.max_total_tokens


def image(**fields: Any) -> Image:
    """Two rows of two image tokens, a break between them."""
    whole = {"offset": 1, "num_tokens": 5, "height": 4, "width": 4, "digest": b"d" * 32}
    return Image(**{**whole, "pixels": b"p" * 48, **fields})


SEEN = [1, IMAGE_TOKEN, IMAGE_TOKEN, 2, IMAGE_TOKEN, IMAGE_TOKEN]


def test_a_model_that_does_not_see_refuses_images_by_name() -> None:
    with pytest.raises(InvalidRequest, match="images: the model does not see"):
        make_checks().check(request(SEEN, images=[image()]))


def test_images_that_fit_their_spans() -> None:
    checks = make_checks(
        vision=Vision(image_token_id=IMAGE_TOKEN, side=2, max_size=80, num_blocks=1)
    )
    checks.check(request(SEEN, max_tokens=4))
    checks.check(request(SEEN, max_tokens=4, images=[image()]))
    checks.check(request(SEEN, max_tokens=4, images=[image(pixels=b"", segment="a")]))
    checks.check(request(SEEN + SEEN, max_tokens=4, images=[image(), image(offset=7)]))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([image(offset=-1)], r"images\[0\].offset must be at least 0, .* got -1"),
        ([image(), image(offset=5)], r"images\[1\].offset must be at least 6, .* got 5"),
        ([image(num_tokens=0)], r"images\[0\].num_tokens must be in \[1, 5\] .* got 0"),
        ([image(num_tokens=6)], r"num_tokens must be in \[1, 5\] after offset 1 .* got 6"),
        ([image(height=5)], r"images\[0\].height must be a multiple of 2, got 5"),
        ([image(width=0)], r"images\[0\].width must be a multiple of 2, got 0"),
        ([image(width=82)], r"images\[0\].width must be at most 80, got 82"),
        ([image(width=80)], r"4 x 80 pixels make 80 image tokens, .* image_cache_bytes holds 64"),
        ([image(width=2)], r"5 tokens from 1 on has 4 image tokens, but 4 x 2 pixels make 2"),
        ([image(digest=b"")], r"images\[0\].digest must have 32 bytes, got 0"),
        ([image(pixels=b"p")], r"images\[0\].pixels must have 48 bytes for 4 x 4 .* got 1"),
        ([image(segment="a")], r"images\[0\].pixels or segment must be given, and not both"),
        ([image(pixels=b"")], r"images\[0\].pixels or segment must be given, and not both"),
    ],
)
def test_images_that_are_refused(images: list[Image], message: str) -> None:
    checks = make_checks(
        vision=Vision(image_token_id=IMAGE_TOKEN, side=2, max_size=80, num_blocks=1)
    )
    with pytest.raises(InvalidRequest, match=message):
        checks.check(request(SEEN, images=images))


def test_a_picture_that_is_larger_than_those_that_memory_was_measured_for() -> None:
    vision = Vision(image_token_id=IMAGE_TOKEN, side=2, num_blocks=1, largest=3)
    with pytest.raises(InvalidRequest, match=r"make 4 .* but the model's files allow 3 at most"):
        make_checks(vision=vision).check(request(SEEN, max_tokens=4, images=[image()]))


def test_pixels_come_from_shared_memory() -> None:
    with tempfile.NamedTemporaryFile(dir=SHARED_MEMORY) as file:
        file.write(b"p" * 48)
        file.flush()
        given = request(SEEN, images=[image(pixels=b"", segment=file.name), image(offset=7)])
        assert with_pixels(given) == request(SEEN, images=[image(), image(offset=7)])


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        ("/etc/passwd", r"images\[0\].segment must be in /dev/shm, got /etc/passwd"),
        ("/dev/shm/../../etc/passwd", "segment must be in /dev/shm, got"),
        ("/dev/shm/sluice-images-none", "segment cannot be read: .*No such file"),
        ("/dev/shm", "segment must have 48 bytes, got"),
    ],
)
def test_files_that_are_not_read(segment: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        with_pixels(request(SEEN, images=[image(pixels=b"", segment=segment)]))
