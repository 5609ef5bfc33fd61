from __future__ import annotations

import math

import pytest
import torch

from kernels import philox


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # The known answers published with Random123.
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    words = philox.philox4x32((c0, c1, c2, c3), (torch.tensor([key[0]]), torch.tensor([key[1]])))
    assert tuple(int(word) for word in words) == expected


def test_a_seed_uses_all_its_64_bits() -> None:
    position, group = torch.tensor([3]), torch.tensor([0])
    seeds = [5, 5 + 2**32, 5 - 2**63]
    words = [philox.random_words(torch.tensor([s]), position, group).tolist() for s in seeds]
    assert len({str(w) for w in words}) == 3


def test_words_broadcast_rows_against_groups() -> None:
    seeds, positions = torch.tensor([[1], [2]]), torch.tensor([[10], [11]])
    words = philox.random_words(seeds, positions, torch.arange(5))
    assert words.shape == (2, 5, 4)
    one = philox.random_words(torch.tensor([2]), torch.tensor([11]), torch.tensor([3]))
    assert torch.equal(words[1, 3], one[0])
    assert int(words.min()) >= 0
    assert int(words.max()) < 2**32


def test_gumbel_stays_within_its_bounds_and_finite() -> None:
    noise = philox.gumbel(torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]))
    assert noise.isfinite().all()
    assert (noise.diff() <= 0).all()
    assert float(noise.min()) > philox.GUMBEL_MIN
    assert float(noise.max()) < philox.GUMBEL_MAX


def test_gumbel_has_the_moments_of_its_distribution() -> None:
    words = philox.random_words(torch.tensor([9]), torch.tensor([0]), torch.arange(50_000))
    noise = philox.gumbel(words.view(-1))
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)
