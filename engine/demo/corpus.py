"""Training batches: chats generated and tokenized by all cores while the device trains."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from engine.demo.data import Example, examples
from engine.demo.template import render
from engine.demo.vocabulary import MAX_LENGTH, TURN_END, TURN_START, token_id

_CHATS_PER_CHUNK = 6000
_LENGTH_MULTIPLE = 16
# Cores that are left for the process of the device, and for its compiler.
_WORKER_NICENESS = 19

Ids = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Batch:
    """Chats of similar length, padded on the right.

    tokens: int16 `[rows, length]`. targets: int16 `[n]`, the assistant's tokens; positions: int32
    `[n]`, the flat index into `tokens` from which each target is to be predicted.
    """

    tokens: Ids
    positions: npt.NDArray[np.int32]
    targets: Ids


class Encoder:
    """Tokenizes chats, and finds the assistant's tokens in them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lead = tokenizer.encode(f"{TURN_START}assistant\n", add_special_tokens=False).ids
        self._start = self._lead[0]
        self._end = token_id(tokenizer, TURN_END)

    def encode(self, chats: list[Example]) -> list[tuple[Ids, npt.NDArray[np.bool_]]]:
        """The token ids of each chat, and which of them count for the loss. Chats that are too long
        are left out."""
        texts = [render(chat.messages, chat.tools).removesuffix("\n") for chat in chats]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        rows = [encoding.ids for encoding in encodings]
        return [
            (np.array(ids, dtype=np.int16), self.said(ids))
            for ids in rows
            if len(ids) <= MAX_LENGTH
        ]

    def said(self, ids: list[int]) -> npt.NDArray[np.bool_]:
        """True for the assistant's tokens, each turn's end token included."""
        mask = np.zeros(len(ids), dtype=np.bool_)
        lead, at = self._lead, 0
        while True:
            try:
                at = ids.index(self._start, at)
            except ValueError:
                return mask
            if ids[at : at + len(lead)] == lead:
                end = ids.index(self._end, at)
                mask[at + len(lead) : end + 1] = True
                at = end
            at += 1


def batches_of(
    encoded: list[tuple[Ids, npt.NDArray[np.bool_]]], tokens_per_batch: int
) -> Iterator[Batch]:
    """Divides chats, sorted by length, into batches of at most `tokens_per_batch` padded tokens."""
    encoded = sorted(encoded, key=lambda pair: len(pair[0]))
    rows: list[tuple[Ids, npt.NDArray[np.bool_]]] = []
    for pair in encoded:
        if rows and _padded(len(pair[0])) * (len(rows) + 1) > tokens_per_batch:
            yield _pad(rows)
            rows = []
        rows.append(pair)
    if rows:
        yield _pad(rows)


def _padded(length: int) -> int:
    return -(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def _pad(rows: list[tuple[Ids, npt.NDArray[np.bool_]]]) -> Batch:
    length = _padded(len(rows[-1][0]))
    tokens = np.zeros((len(rows), length), dtype=np.int16)
    counted = np.zeros((len(rows), length), dtype=np.bool_)
    for i, (ids, mask) in enumerate(rows):
        tokens[i, : len(ids)] = ids
        counted[i, : len(ids)] = mask
    flat = np.flatnonzero(counted)
    return Batch(tokens, (flat - 1).astype(np.int32), tokens.reshape(-1)[flat])


_worker_encoder: Encoder


def _start_worker(tokenizer_json: str) -> None:
    global _worker_encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.nice(_WORKER_NICENESS)
    _worker_encoder = Encoder(Tokenizer.from_str(tokenizer_json))


def _make_chunk(job: tuple[int, int, int]) -> list[Batch]:
    seed, num_chats, tokens_per_batch = job
    chats = list(islice(examples("train", seed), num_chats))
    return list(batches_of(_worker_encoder.encode(chats), tokens_per_batch))


class Corpus:
    """Batches from worker processes; earlier ones are repeated if the workers are too slow.

    `memory_tokens`: the most tokens that are kept. When they are reached, the workers stop, and the
    batches are repeated in random order.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        seed: int,
        tokens_per_batch: int,
        num_workers: int,
        memory_tokens: int = 2_000_000_000,
        chats_per_chunk: int = _CHATS_PER_CHUNK,
    ) -> None:
        self._fresh: list[Batch] = []
        self._seen: list[Batch] = []
        self._rng = random.Random(seed)
        self._arrived = threading.Condition()
        self._failure: BaseException | None = None
        self._memory_tokens = memory_tokens
        self._jobs = ((seed * 1_000_000 + i, chats_per_chunk, tokens_per_batch) for i in count())
        self._closed = False
        self.num_tokens = 0
        context = multiprocessing.get_context("spawn")
        self._pool = context.Pool(num_workers, _start_worker, (tokenizer.to_str(),))
        for _ in range(2 * num_workers):
            self._submit()

    def _submit(self) -> None:
        job = next(self._jobs)
        self._pool.apply_async(_make_chunk, (job,), callback=self._add, error_callback=self._fail)

    def _add(self, batches: list[Batch]) -> None:
        """Keep a result, and ask for another one until the memory is full. Called in the pool's
        thread for results."""
        with self._arrived:
            self._fresh += batches
            self._rng.shuffle(self._fresh)
            self.num_tokens += sum(batch.tokens.size for batch in batches)
            self._arrived.notify_all()
        if self.num_tokens < self._memory_tokens and not self._closed:
            self._submit()

    def _fail(self, error: BaseException) -> None:
        with self._arrived:
            self._failure = error
            self._arrived.notify_all()

    def take(self) -> Batch:
        """The next batch. Waits only for the very first; raises what a worker raised."""
        with self._arrived:
            while not self._fresh and not self._seen and self._failure is None:
                self._arrived.wait()
            if self._failure is not None:
                raise self._failure
            if not self._fresh:
                return self._rng.choice(self._seen)
            batch = self._fresh.pop()
            self._seen.append(batch)
            return batch

    @property
    def num_waiting(self) -> int:
        return len(self._fresh)

    def close(self) -> None:
        """Ends the workers."""
        self._closed = True
        self._pool.terminate()
        self._pool.join()
