"""Requests with pictures generate what they do alone, and no picture is encoded in vain."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.messages import Image
from engine.vision import BLOCK_ROWS
from tests.engine.scheduler.harness import Harness
from tests.engine.scheduler.toy_runner import IMAGE_TOKEN


def picture(offset: int, num_tokens: int, kind: int = 0, *, breaks: int = 0) -> Image:
    """Of as many pixels as image tokens; some other tokens among them are breaks between rows."""
    pixels = bytes([kind]) * (3 * (num_tokens - breaks))
    return Image(
        offset=offset,
        num_tokens=num_tokens,
        height=1,
        width=num_tokens - breaks,
        digest=bytes([kind, num_tokens % 256]) * 16,
        pixels=pixels,
    )


def prompt(*parts: int | Image) -> tuple[list[int], list[Image]]:
    """Numbers stand for that many tokens of text, the same in all prompts."""
    ids: list[int] = []
    images: list[Image] = []
    for part in parts:
        if isinstance(part, Image):
            images.append(picture(len(ids), part.num_tokens, part.digest[0]))
            ids += [IMAGE_TOKEN] * part.num_tokens
        else:
            ids += [4 + i % 7 for i in range(part)]
    return ids, images


def add(harness: Harness, name: str, *parts: int | Image, **options: Any) -> None:
    ids, images = prompt(*parts)
    harness.add(name, ids, images=images, max_tokens=options.pop("max_tokens", 3), **options)


def num_encoded(harness: Harness) -> int:
    return sum(len(plan.encodings) for plan in harness.runner.plans)


@pytest.mark.parametrize("seed", range(12))
def test_they_generate_what_they_do_alone(seed: int) -> None:
    """Short of blocks, of encoder cache and of tokens; with chunks, moves and overlap."""
    rng = random.Random(seed)
    harness = Harness(
        max_model_len=400,
        num_blocks=rng.choice([72, 90, 300]),
        num_picture_blocks=rng.choice([2, 3, 8]),
        num_swap_blocks=rng.choice([0, 60]),
        max_num_batched_tokens=rng.choice([7, 30, 300]),
        max_num_image_tokens=rng.choice([1, 70, 500]),
        async_scheduling=rng.random() < 0.5,
        policy=rng.choice(["fcfs", "fair_share", "priority"]),
        max_num_seqs=rng.choice([2, 8]),
        draft_hits=rng.choice([None, 0.7]),
    )
    for number in range(14):
        parts: list[int | Image] = [rng.randrange(1, 12)]
        for _ in range(rng.randrange(4)):
            parts += [picture(0, rng.choice([1, 5, 30, 70]), rng.randrange(3)), rng.randrange(1, 9)]
        tenant = rng.choice(["a", "b"])
        add(harness, f"r{number}", *parts, salt=tenant, fair_key=tenant, max_tokens=30)
        harness.step(rng.randrange(3))
        if rng.random() < 0.2 and f"r{number}" not in harness.finished:
            harness.move(f"r{number}")
    harness.run()
    harness.check_outputs()


def test_breaks_between_rows_keep_their_embeddings() -> None:
    harness = Harness(num_picture_blocks=2, max_num_batched_tokens=4)
    ids = [5, *[IMAGE_TOKEN, IMAGE_TOKEN, 6] * 3, 7]
    harness.add("a", ids, images=[picture(1, 9, breaks=3)], max_tokens=2)
    harness.run()
    harness.check_outputs()
    assert num_encoded(harness) == 1


def test_a_picture_is_encoded_once_for_a_tenant() -> None:
    """Cut into chunks, in other prompts, and not at all behind a cached prefix."""
    harness = Harness(num_picture_blocks=8, max_num_batched_tokens=16)
    add(harness, "a", 3, picture(0, 70), 2, salt="one")
    harness.run()
    assert num_encoded(harness) == 1
    add(harness, "elsewhere", 9, picture(0, 70), 2, salt="one")
    add(harness, "again", 3, picture(0, 70), 2, salt="one")
    harness.run()
    assert num_encoded(harness) == 1
    add(harness, "other", 3, picture(0, 70), 2, salt="two")
    harness.run()
    assert num_encoded(harness) == 2
    harness.check_outputs()


def test_a_cached_prefix_needs_no_encoder_output() -> None:
    harness = Harness(num_picture_blocks=1, max_num_batched_tokens=64)
    add(harness, "a", 3, picture(0, 20), 8)
    add(harness, "b", 3, picture(0, 60, 1), 8)  # takes the only block
    harness.run()
    assert num_encoded(harness) == 2
    add(harness, "a again", 3, picture(0, 20), 8)
    harness.run()
    assert num_encoded(harness) == 2
    harness.check_outputs()


def test_a_step_encodes_no_more_than_it_may() -> None:
    harness = Harness(num_picture_blocks=20, max_num_image_tokens=50, max_num_batched_tokens=999)
    for number in range(6):
        add(harness, f"r{number}", 2, picture(0, 20, number), 2)
    add(harness, "large", 2, picture(0, 130, 7), 2)
    harness.run()
    harness.check_outputs()
    for plan in harness.runner.plans:
        tokens = [encoding.height * encoding.width for encoding in plan.encodings]
        assert sum(tokens) <= 50 or len(tokens) == 1


@pytest.mark.parametrize(("num_tokens", "most"), [(40, 1), (999, 2)])
def test_a_step_encodes_no_more_tokens_than_it_computes(num_tokens: int, most: int) -> None:
    options: dict[str, Any] = {"max_model_len": 400, "num_blocks": 200}
    harness = Harness(
        num_picture_blocks=20,
        max_num_image_tokens=999,
        max_num_batched_tokens=num_tokens,
        **options,
    )
    add(harness, "sees", 2, picture(0, 30), picture(0, 200, 1), 2)
    harness.run()
    harness.check_outputs()
    assert max(len(plan.encodings) for plan in harness.runner.plans) == most


def test_text_passes_those_who_wait_for_the_encoder() -> None:
    """Also at the head of the queue, and they are not passed for ever."""
    harness = Harness(num_picture_blocks=20, max_num_image_tokens=20, max_num_batched_tokens=200)
    for number in range(4):
        add(harness, f"r{number}", picture(0, 20, number), 2, max_tokens=2)
    harness.add("text", 5, max_tokens=2)
    harness.step(2)
    assert "text" in harness.finished
    assert len(harness.finished) < 3
    harness.run()
    harness.check_outputs()


def test_a_picture_that_no_cache_holds_is_refused() -> None:
    harness = Harness(num_picture_blocks=1, max_model_len=300)
    add(harness, "a", 2, picture(0, BLOCK_ROWS + 1), 2)
    harness.run()
    harness.check_outputs(errors={"a"})
    assert "image_cache_bytes holds 64" in str(harness.finished["a"].error)


def test_a_tenant_keeps_its_share_of_the_encoders_cache() -> None:
    harness = Harness(
        num_picture_blocks=4, prefix_cache_tenant_floor=0.25, enable_prefix_caching=False
    )
    add(harness, "mine", 2, picture(0, 30, 1), 2, salt="one", fair_key="one")
    harness.run()
    for number in range(8):
        add(harness, f"r{number}", 2, picture(0, 30, 2 + number), 2, salt="two", fair_key="two")
        harness.run()
    before = num_encoded(harness)
    add(harness, "mine again", 2, picture(0, 30, 1), 2, salt="one", fair_key="one")
    harness.run()
    assert num_encoded(harness) == before
    harness.check_outputs()
