"""Chunks of a recurrence against its steps one by one, which are the definition."""

from __future__ import annotations

import pytest
import torch

from kernels import recurrence

HEADS, KEYS, VALUES, CHANNELS, KERNEL = 3, 8, 5, 6, 4


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def operands(num_tokens: int) -> tuple[torch.Tensor, ...]:
    q, k = draw(num_tokens, HEADS, KEYS), draw(num_tokens, HEADS, KEYS, seed=1)
    k = torch.nn.functional.normalize(k, dim=-1)
    decay = -draw(num_tokens, HEADS, seed=2).abs()
    return q, k, draw(num_tokens, HEADS, VALUES, seed=3), decay


@pytest.mark.parametrize("by_delta", [False, True])
@pytest.mark.parametrize(("num_tokens", "chunk"), [(1, 64), (5, 64), (16, 4), (23, 8), (130, 64)])
def test_chunks_come_to_what_steps_do(num_tokens: int, chunk: int, *, by_delta: bool) -> None:
    q, k, v, decay = operands(num_tokens)
    beta = draw(num_tokens, HEADS, seed=4).sigmoid() if by_delta else None
    state = first = draw(HEADS, KEYS, VALUES, seed=5)
    outputs = []
    for i in range(num_tokens):
        at, one = slice(i, i + 1), None if beta is None else beta[i : i + 1]
        out, after = recurrence.step(q[at], k[at], v[at], decay[at], state[None], one)
        outputs.append(out)
        state = after[0]
    out, after = recurrence.scan(q, k, v, decay, first, beta, chunk=chunk)
    torch.testing.assert_close(out, torch.cat(outputs), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(after, state, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("by_delta", [False, True])
def test_a_prompt_goes_on_from_the_state_of_its_beginning(*, by_delta: bool) -> None:
    q, k, v, decay = operands(50)
    beta = draw(50, HEADS, seed=4).sigmoid() if by_delta else None
    nothing = torch.zeros(HEADS, KEYS, VALUES)
    whole, last = recurrence.scan(q, k, v, decay, nothing, beta, chunk=16)
    state, parts = nothing, []
    for some in (slice(0, 7), slice(7, 40), slice(40, 50)):
        weight = None if beta is None else beta[some]
        out, state = recurrence.scan(q[some], k[some], v[some], decay[some], state, weight)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state, last, atol=1e-5, rtol=1e-4)


def test_a_strong_decay_forgets_and_does_not_overflow() -> None:
    q, k, v, _ = operands(200)
    decay = torch.full((200, HEADS), -30.0)
    out, state = recurrence.scan(q, k, v, decay, torch.full((HEADS, KEYS, VALUES), 1e6))
    own = (q * k).sum(-1, keepdim=True) * v
    torch.testing.assert_close(out[1:], own[1:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(state, k[-1][..., None] * v[-1][..., None, :])


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_convolution_goes_on_from_its_last_inputs(*, has_bias: bool) -> None:
    x, weight = draw(9, CHANNELS), draw(CHANNELS, KERNEL)
    bias = draw(CHANNELS) if has_bias else None
    nothing = torch.zeros(CHANNELS, KERNEL - 1)
    whole, last = recurrence.convolve(x, nothing, weight, bias)
    padded = torch.cat((torch.zeros(KERNEL - 1, CHANNELS), x))
    expected = sum(padded[i : i + 9] * weight[:, i] for i in range(KERNEL))
    torch.testing.assert_close(whole, expected if bias is None else expected + bias)
    out, state = recurrence.convolve(x[:2], nothing, weight, bias)
    outputs, states = [out], state[None]
    for token in x[2:]:
        out, states = recurrence.convolve_step(token[None], states, weight, bias)
        outputs.append(out)
    torch.testing.assert_close(torch.cat(outputs), whole)
    torch.testing.assert_close(states[0], last)
