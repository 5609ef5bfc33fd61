"""Every op in plain torch. Fast kernels are tested against it, and it runs where there are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from kernels import philox
from kernels.sampling_row import sampling_rows

if TYPE_CHECKING:
    from kernels.lora import AdapterTiles, LoraMatrices

FP8_MAX = torch.finfo(torch.float8_e4m3fn).max
MIN_SCALE = 1e-12
"""The scale of a row of zeros."""
_NEG_INF = float("-inf")


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    inner: torch.Tensor | None = None,
) -> torch.Tensor:
    """RMSNorm (arXiv 1910.07467) of x: [num_tokens, width], the mean square taken in float32.

    weight: of x's dtype, or of float32, which is then applied before rounding to x's dtype. With
    ``residual``, of x's shape: add x to it in place, then norm the sum. With ``inner``, like
    weight: norm x with it first.
    """
    if inner is not None:
        x = rms_norm(x, inner, eps)
    if residual is not None:
        x = residual.add_(x)
    x32 = x.float()
    normed = x32 * x32.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    if weight.dtype != x.dtype:
        return (normed * weight).to(x.dtype)
    return normed.to(x.dtype).mul_(weight)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of [num_tokens, 2 * intermediate], gate first."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``gelu(gate) * up``, the tanh approximation, of what ``silu_mul`` takes."""
    gate, up = gate_up.chunk(2, -1)
    return F.gelu(gate, approximate="tanh").mul_(up)


def rope_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Rotate q in place, and store the rotated k, and v, in the paged cache (arXiv:2104.09864).

    q, k, v: [num_tokens, heads, head_dim], views of one fused projection. k_cache, v_cache:
    [num_blocks, block_size, num_kv_heads, head_dim]. cos_sin: [max_positions, rotary_dim] float32,
    cosines then sines; dimension i turns with i + rotary_dim / 2, those past rotary_dim stay.
    positions, slots: [num_tokens] int64; slot = block * block_size + offset, -1 stores nothing.
    q_norm, k_norm: [head_dim], weights of an ``rms_norm`` of each head before the rotation.
    k_scale, v_scale: of caches in FP8, see ``quantize_heads``.
    """
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, -1)
    if q_norm is not None:
        q.copy_(rms_norm(q, q_norm, eps))
    if k_norm is not None:
        k = rms_norm(k, k_norm, eps)
    q.copy_(_rotate(q, cos, sin))
    k = _rotate(k, cos, sin).to(k.dtype)
    padding = slots < 0
    if padding.any():
        kept = ~padding
        k, v, slots = k[kept], v[kept], slots[kept]
    store_heads(k_cache, slots, k, k_scale)
    store_heads(v_cache, slots, v, v_scale)


def store_latents(
    q: torch.Tensor,
    q_turned: torch.Tensor,
    kv: torch.Tensor,
    norm: torch.Tensor,
    cache: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    eps: float,
    interleaved: bool,
    scale: torch.Tensor | None = None,
) -> None:
    """Prepare latent attention (arXiv:2405.04434): rotate the leading part of each query head into
    q, and store the rotated part of the keys with the normed latent in the cache.

    q: [num_tokens, num_heads, rotary_dim + rank]; q_turned: [num_tokens, num_heads, rotary_dim],
    any strides; kv: [num_tokens, rank + rotary_dim]; norm: [rank], of an ``rms_norm``; cache:
    [num_blocks, block_size, 1, rotary_dim + rank]; cos_sin, positions, slots: see
    ``rope_and_cache``. interleaved: dimensions come in pairs (0, 1), (2, 3), and are put into
    halves; scores do not care. scale: [1], of a cache in FP8, see ``quantize_heads``.
    """
    rank, rotary_dim = len(norm), cos_sin.shape[1]
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, -1)
    latent, k_turned = kv.split_with_sizes((rank, rotary_dim), -1)
    turned = torch.cat((q_turned, k_turned.unsqueeze(1)), 1)
    if interleaved:
        pairs = turned.reshape(*turned.shape[:-1], -1, 2)
        turned = pairs.transpose(-1, -2).reshape(turned.shape)
    turned = _rotate(turned, cos, sin).to(q.dtype)
    q[..., :rotary_dim] = turned[:, :-1]
    heads = torch.cat((turned[:, -1:], rms_norm(latent, norm, eps).unsqueeze(1)), -1)
    kept = slots >= 0
    store_heads(cache, slots[kept], heads[kept], scale)


def store_heads(
    cache: torch.Tensor, slots: torch.Tensor, heads: torch.Tensor, scale: torch.Tensor | None
) -> None:
    """Write heads [num_tokens, num_kv_heads, head_dim] to their slots, none of them negative.

    cache: [num_blocks, block_size, num_kv_heads, head_dim]; scale: None unless it is in FP8.
    """
    rows = cache.view(-1, *cache.shape[2:])
    if scale is None:
        rows.index_copy_(0, slots, heads)
    else:  # as bytes: few of torch's functions know FP8
        stored = quantize_heads(heads, scale).view(torch.uint8)
        rows.view(torch.uint8).index_copy_(0, slots, stored)


def quantize_heads(heads: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``heads / scale`` in FP8 (e4m3), clamped to its range.

    heads: [..., num_kv_heads, head_dim]; scale: [num_kv_heads] float32.
    """
    scaled = heads.float() / scale.unsqueeze(-1)
    return scaled.clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def dequantize_heads(stored: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32; stored: [..., num_kv_heads, head_dim] float8_e4m3fn; scale: [num_kv_heads]."""
    return stored.float() * scale.unsqueeze(-1)


def shrink_lora(x: torch.Tensor, matrices: LoraMatrices, tiles: AdapterTiles) -> torch.Tensor:
    """``down @ x`` of each token's adapter, for each part (arXiv:2106.09685): [num_tokens,
    num_parts * max_rank], or another layout that the same backend's ``expand_lora`` reads. The
    result has no meaning beyond an adapter's rank, and for tokens without an adapter.

    x: [num_tokens, in_features]
    """
    max_rank = matrices.down.shape[2]
    low = x.new_empty(len(x), len(matrices.parts) * max_rank)
    for slot, tokens in _by_slot(tiles):
        rows = x[tokens]
        for part, rank in enumerate(matrices.ranks[slot].tolist()):
            if rank:
                columns = slice(part * max_rank, part * max_rank + rank)
                low[tokens, columns] = rows @ matrices.down[slot, part, :rank].T
    return low


def expand_lora(
    out: torch.Tensor, low: torch.Tensor, matrices: LoraMatrices, tiles: AdapterTiles
) -> None:
    """Add ``up @ low`` of each token's adapter to its output, in place.

    out: [num_tokens, out_features], contiguous; low: of ``shrink_lora``.
    """
    max_rank, ends = matrices.up.shape[2], matrices.ends.tolist()
    for slot, tokens in _by_slot(tiles):
        rows = low[tokens]
        for part, rank in enumerate(matrices.ranks[slot].tolist()):
            if not rank:
                continue
            columns = slice(ends[part], ends[part + 1])
            own = rows[:, part * max_rank : part * max_rank + rank]
            up = matrices.up[slot, columns, :rank].T
            if isinstance(tokens, slice):
                out[tokens, columns].addmm_(own, up)
            else:
                out[:, columns].index_add_(0, tokens, own @ up)


def _by_slot(tiles: AdapterTiles) -> Iterator[tuple[int, slice | torch.Tensor]]:
    tokens, rows = tiles.tokens.view(-1), tiles.tokens.shape[1]
    slots, counts = torch.unique_consecutive(tiles.slots, return_counts=True)
    first = 0
    for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
        own = tokens[first : first + count * rows]
        first += len(own)
        if slot >= 0:
            yield slot, _chosen(own[own >= 0])


def _chosen(tokens: torch.Tensor) -> slice | torch.Tensor:
    """Ascending indices, as a slice if they are contiguous."""
    first, last = int(tokens[0]), int(tokens[-1])
    return slice(first, last + 1) if last - first == len(tokens) - 1 else tokens


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row in FP8 (e4m3), scaled so that its largest element becomes the largest FP8 number.

    x: [rows, width]; returns [rows, width] float8_e4m3fn, and the scales [rows, 1] float32 to
    multiply it with.
    """
    x32 = x.float()
    scale = (x32.abs().amax(-1, keepdim=True) / FP8_MAX).clamp_(min=MIN_SCALE)
    return (x32 / scale).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


def dequantize_fp8(
    weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] | None = None
) -> torch.Tensor:
    """float32; weight: [features, k] float8_e4m3fn; block: rows and columns that share a scale, one
    row where it is None. scale: [features / rows, k / columns] float32, both rounded up."""
    if block is not None:
        (rows, columns), (features, k) = block, weight.shape
        scale = scale.repeat_interleave(rows, 0)[:features]
        scale = scale.repeat_interleave(columns, 1)[:, :k]
    return weight.float() * scale


def linear_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    block: tuple[int, int] | None = None,
    *,
    round_x: bool = True,
) -> torch.Tensor:
    """``x @ dequantize_fp8(weight, scale, block).T``; x: [rows, k]. round_x: an implementation may
    round x to FP8, each row or each piece of it that has as many columns as a block."""
    return F.linear(x, dequantize_fp8(weight, scale, block).to(x.dtype))


def dequantize_int4(packed: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """``(nibble - zero) * scale``, the product rounded once.

    packed: [features, k / 8] int32, k a multiple of 32: of 32 neighbours, word t = 0..3 holds
    8 i + 2 t in its nibble i = 0..3, and 8 i + 2 t + 1 in nibble i + 4. groups: [features,
    num_groups, 2], scale and zero of each k / num_groups neighbours. Returns [features, k] of
    groups' dtype.
    """
    shifts = torch.tensor([[0, 16], [4, 20], [8, 24], [12, 28]], device=packed.device)
    words = packed.view(len(packed), -1, 1, 4, 1)
    nibbles = (words >> shifts.to(torch.int32)[:, None]) & 15
    nibbles = nibbles.reshape(*groups.shape[:2], -1)
    scale, zero = groups.float().unsqueeze(-1).unbind(2)
    return ((nibbles - zero) * scale).to(groups.dtype).flatten(1)


def linear_int4(x: torch.Tensor, packed: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """``x @ dequantize_int4(packed, groups).T``; x: [rows, k] of groups' dtype."""
    return F.linear(x, dequantize_int4(packed, groups))


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    first, second, rest = x.float().tensor_split((half, 2 * half), -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_queries: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of the last tokens of each sequence over its paged keys, in float32.

    q: [num_tokens, num_q_heads, head_dim], sequences one after another as cu_queries [batch + 1]
    says. block_table: [batch, max_blocks]; seq_lens: [batch], the step's tokens included. The query
    heads of a group share a KV head (arXiv 2305.13245). Nothing past a sequence's end is read.
    window: keys a query sees, its own included (arXiv 2004.05150); softcap: scores become
    ``softcap * tanh(score / softcap)``. k_scale, v_scale: [num_kv_heads] float32, what caches in
    FP8 are multiplied with. sinks: [num_q_heads], a score of each head that takes part in the
    softmax and has no value (arXiv 2309.17453).
    """
    out = torch.empty_like(q)
    block_size, num_kv_heads, head_dim = k_cache.shape[1:]
    for i, length in enumerate(seq_lens.tolist()):
        first, last = int(cu_queries[i]), int(cu_queries[i + 1])
        num_queries = last - first
        if num_queries == 0:
            continue
        blocks = block_table[i, : -(-length // block_size)].long()
        k = _read_heads(k_cache, blocks, k_scale)[:length]
        v = _read_heads(v_cache, blocks, v_scale)[:length]
        grouped = q[first:last].float().view(num_queries, num_kv_heads, -1, head_dim)
        scores = torch.einsum("qhgd,khd->hgqk", grouped, k) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        position = torch.arange(length - num_queries, length, device=q.device)[:, None]
        key = torch.arange(length, device=q.device)
        hidden = key > position
        if window is not None:
            hidden |= key <= position - window
        scores = scores.masked_fill(hidden, _NEG_INF)
        if sinks is not None:
            sink = sinks.float().view(num_kv_heads, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat((scores, sink), -1)
        weights = scores.softmax(-1)[..., :length]
        out[first:last] = torch.einsum("hgqk,khd->qhgd", weights, v).reshape_as(q[first:last])
    return out


def _read_heads(
    cache: torch.Tensor, blocks: torch.Tensor, scale: torch.Tensor | None
) -> torch.Tensor:
    """[num_tokens, num_kv_heads, head_dim] float32 of the blocks."""
    heads = cache.view(torch.uint8)[blocks].view(cache.dtype).flatten(0, 1)
    return heads.float() if scale is None else dequantize_heads(heads, scale)


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor) -> None:
    """Set forbidden tokens to -inf in place.

    logits: [num_rows, vocab]; bitmask: [n, ceil(vocab / 32)] int32, bit ``i % 32`` of word
    ``i // 32`` allows token i; rows: [n], the row of logits each mask belongs to.
    """
    bits = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    allowed = (bitmask.unsqueeze(-1) >> bits) & 1
    forbidden = allowed.view(bitmask.shape[0], -1)[:, : logits.shape[1]] == 0
    logits[rows] = logits[rows].masked_fill_(forbidden, _NEG_INF)


def apply_penalties(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    where: torch.Tensor,
    strengths: torch.Tensor,
    *,
    max_len: int,
) -> None:
    """Apply penalties for tokens that occurred before to logits, in place.

    logits: [num_rows, vocab] float32. tokens: [max_rows, max_tokens] int64, all of them ids. where:
    [4, n] int64: for each row of logits to change its index, its row of ``tokens``, how many tokens
    that holds so far (at most ``max_len``), and how many of these are the prompt; no index comes
    twice. strengths: [3, n] float32:

    - repetition, over prompt and output: divides positive logits, multiplies negative ones (arXiv
      1909.05858);
    - frequency: taken off once for each time a token is in the output;
    - presence: taken off once if it is there.
    """
    indices, rows, lengths, num_prompt = where
    repetition, frequency, presence = strengths.unsqueeze(-1)
    history = tokens[rows, :max_len]
    position = torch.arange(max_len, device=tokens.device)
    known = position < lengths.unsqueeze(-1)
    generated = known & (position >= num_prompt.unsqueeze(-1))
    scores = logits[indices]
    seen = torch.zeros_like(scores).scatter_add_(1, history, known.float()) > 0
    counts = torch.zeros_like(scores).scatter_add_(1, history, generated.float())
    scores = torch.where(
        seen, torch.where(scores > 0, scores / repetition, scores * repetition), scores
    )
    scores -= frequency * counts
    scores -= presence * (counts > 0)
    logits[indices] = scores


Logprobs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_ROWS_AT_ONCE = 64  # of log-probabilities, several times the size of the logits


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> Logprobs:
    """The log-probabilities and ranks of tokens, and the most likely tokens.

    logits: [n, vocab], any float dtype; token_ids: [n] int64; num_top: k, at most vocab. Returns

    - [n] float32: the log-probability of each token, of softmax(logits) in float32;
    - [n] int64: its rank, one more than the number of tokens with a higher logit;
    - [n, k] int64 and [n, k] float32: the ids and log-probabilities of the likeliest tokens, the
      best first, of equals the lowest id first.
    """
    slices = [slice(i, i + _ROWS_AT_ONCE) for i in range(0, len(token_ids), _ROWS_AT_ONCE)]
    parts = [_token_logprobs(logits[at].float(), token_ids[at], num_top) for at in slices]
    logprobs, ranks, top_ids, top_logprobs = (torch.cat(c) for c in zip(*parts, strict=True))
    return logprobs, ranks, top_ids, top_logprobs


def _token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> Logprobs:
    chosen = token_ids.unsqueeze(1)
    ranks = (logits > logits.gather(1, chosen)).sum(-1) + 1
    top_ids = _likeliest(logits, num_top)
    logprobs = logits.log_softmax(-1)
    return logprobs.gather(1, chosen).squeeze(1), ranks, top_ids, logprobs.gather(1, top_ids)


def _likeliest(logits: torch.Tensor, num_top: int) -> torch.Tensor:
    # topk leaves open which of equals it takes, and the answer may depend on the batch. So it gets
    # integers without equals: the float's bits, made to order as the floats do, over the id.
    bits = (logits + 0.0).view(torch.int32)  # adding 0 makes the zeros equal
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    last = logits.shape[1] - 1
    keys = (ordered.long() << 32) | torch.arange(last, -1, -1, device=logits.device)
    return last - (keys.topk(num_top, sorted=True).values & 0xFFFFFFFF)


def process_logits(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
) -> torch.Tensor:
    """Scores whose softmax is the distribution a request samples from; removed tokens are -inf.

    logits: [num_rows, vocab] float32, not changed; the rest: [num_rows], temperature above 0, top_k
    int64 with vocab for "all". In this order, as ``transformers`` has it: temperature; top-k (ties
    with the k-th stay); top-p over what is left (of ties at the edge the highest ids stay); min-p.
    """
    # Against the maximum first: no temperature, however small, can overflow the best score.
    scores = logits - logits.amax(-1, keepdim=True)
    scores /= temperature.unsqueeze(-1)
    if top_k is not None:
        _keep_top_k(scores, top_k)
    if top_p is not None:
        _keep_top_p(scores, top_p)
    if min_p is not None:
        # The best score is 0, so p >= min_p * p_max reads score >= log(min_p).
        floor = min_p.double().log().float()
        scores.masked_fill_(scores < floor.unsqueeze(-1), _NEG_INF)
    return scores


def _keep_top_k(scores: torch.Tensor, top_k: torch.Tensor) -> None:
    limited = (top_k < scores.shape[1]).nonzero().squeeze(-1)
    if limited.numel() == 0:
        return
    k = top_k[limited]
    rows = scores[limited]
    best = rows.topk(int(k.max()), sorted=True).values
    threshold = best.gather(1, k.unsqueeze(1) - 1)
    scores[limited] = rows.masked_fill_(rows < threshold, _NEG_INF)


def _keep_top_p(scores: torch.Tensor, top_p: torch.Tensor) -> None:
    limited = (top_p < 1).nonzero().squeeze(-1)
    if limited.numel() == 0:
        return
    rows, p = scores[limited], top_p[limited].unsqueeze(1)
    # In float64, so that another order of summing does not change a decision.
    target = p * rows.double().exp().sum(-1, keepdim=True)
    vocab_size = rows.shape[1]
    num_candidates = min(128, vocab_size)
    while True:
        # The nucleus is nearly always small: sorting the whole vocabulary is the last resort.
        best = rows.topk(num_candidates, sorted=True).values
        mass = best.double().exp().cumsum(-1)
        # A token stays as long as those before it do not reach p.
        num_kept = (mass[:, :-1] < target).sum(-1, keepdim=True) + 1
        if num_candidates == vocab_size or int(num_kept.max()) < num_candidates:
            break
        num_candidates = min(8 * num_candidates, vocab_size)
    threshold = best.gather(1, num_kept - 1)
    ties = rows == threshold
    num_ties_kept = num_kept - (rows > threshold).sum(-1, keepdim=True)
    removed = rows < threshold
    if (ties.sum(-1, keepdim=True) > num_ties_kept).any():
        rank_from_end = ties.flip(-1).cumsum(-1).flip(-1)
        removed |= ties & (rank_from_end > num_ties_kept)
    scores[limited] = rows.masked_fill_(removed, _NEG_INF)


def gumbel_argmax(
    scores: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Draw one token a row from softmax(scores) by the Gumbel-max trick: int64 [num_rows].

    scores: [num_rows, vocab] float32, the best of each row 0; seeds, positions: [num_rows] int64.
    """
    num_rows, vocab_size = scores.shape
    # Noise is computed only for tokens that it can make the best.
    possible = scores >= philox.GUMBEL_MIN - philox.GUMBEL_MAX
    if 4 * int(possible.sum()) < scores.numel():
        rows, tokens = possible.nonzero(as_tuple=True)
        words = philox.random_words(seeds[rows], positions[rows], tokens >> 2)
        noise = philox.gumbel(words.gather(-1, (tokens & 3).unsqueeze(-1)).squeeze(-1))
        noisy = torch.full_like(scores, _NEG_INF)
        noisy[rows, tokens] = scores[rows, tokens] + noise
        return noisy.argmax(-1)
    groups = torch.arange(-(-vocab_size // 4), device=scores.device)
    words = philox.random_words(seeds.unsqueeze(1), positions.unsqueeze(1), groups)
    return (philox.gumbel(words.view(num_rows, -1)[:, :vocab_size]) + scores).argmax(-1)


def sample_rows(
    logits: torch.Tensor,
    table: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor | None = None,
    host: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draw a token for each row of logits as its entry of ``table`` says: int64 [num_rows].

    ``process_logits``, then ``gumbel_argmax``; the best token where the temperature is 0. logits:
    [num_rows, vocab]; table: [max_rows, 32] uint8, ``SAMPLING_ROW`` each; rows, positions:
    [num_rows] int32. With ``tokens`` [max_rows, max_len] the token is also stored at ``tokens[row,
    position]``, and with ``host``, at least ``num_rows`` of int64 memory, in that; for a GPU it is
    pinned, and must stay allocated until the stream has passed this point. Nothing is stored for
    row -1.
    """
    vocab_size, logits = logits.shape[1], logits.float()
    entries = sampling_rows(table)[rows.clamp(min=0).cpu().numpy()]

    def column(name: str) -> torch.Tensor:
        return torch.from_numpy(entries[name].copy()).to(logits.device)

    temperature, top_k, top_p, min_p = map(column, ("temperature", "top_k", "top_p", "min_p"))
    out, greedy = logits.argmax(-1), temperature == 0
    if not greedy.all():
        scores = process_logits(
            logits,
            temperature.masked_fill(greedy, 1.0),
            top_k.long().clamp(max=vocab_size) if (top_k < vocab_size).any() else None,
            top_p if (top_p < 1).any() else None,
            min_p if (min_p > 0).any() else None,
        )
        seeds = torch.from_numpy(entries["seed"].view(np.int64)).to(logits.device)
        out = torch.where(greedy, out, gumbel_argmax(scores, seeds, positions.long()))
    able = rows >= 0
    if tokens is not None:
        tokens[rows[able].long(), positions[able].long()] = out[able]
    if host is not None:
        host[: len(out)].copy_(out, non_blocking=True)
    return out
