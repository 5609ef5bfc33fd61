"""Chats about pictures as tensors, made by all cores while the device trains."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from tokenizers import Tokenizer

from engine.demo.vision.fonts import find_fonts
from engine.demo.vision.network import SIDE, positions
from engine.demo.vision.pictures import Split, held_out_split, train_split
from engine.demo.vision.questions import Example, example, examples
from engine.demo.vocabulary import END_OF_TEXT, TURN_END, TURN_START, token_id

IMAGE, START, END, VIDEO = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END, START, END, IMAGE, VIDEO)

_GRIDS = ((8, 8),) * 6 + ((7, 7), (6, 6), (7, 8), (8, 7), (6, 9), (9, 6), (7, 9), (5, 10), (10, 6))
"""Rows and columns of image tokens."""
_SMALLEST, _LARGEST = 0.6, 1.9
"""Of a picture as it is drawn, beside the size in which it is shown."""
_ROUND = 8
"""Lengths are multiples of this."""
_READ = 8
"""Batches that wait in the training process."""


@dataclass(frozen=True)
class Batch:
    token_ids: npt.NDArray[np.int64]
    """[chats, tokens], padded behind."""
    places: npt.NDArray[np.int64]
    """[chats, 3, tokens]"""
    is_answer: npt.NDArray[np.bool_]
    """[chats, tokens]: what the model is to say, with the ends of its turns."""
    pictures: npt.NDArray[np.uint8]
    """[pictures, height, width, 3]: of all chats, in order."""


def prompt_of(given: Example, pads: str) -> str:
    """Up to where the first answer begins, as the chat template writes it. pads: what stands for a
    picture."""
    shown = f"{START}{pads}{END}" * len(given.pictures)
    return f"{TURN_START}user\n{shown}{given.turns[0][0]}{TURN_END}\n{TURN_START}assistant\n"


class Encoder:
    """Chats to token ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._image = token_id(tokenizer, IMAGE)
        self._pad = token_id(tokenizer, END_OF_TEXT)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def prompt(self, given: Example, grid: tuple[int, int]) -> list[int]:
        ids = self._ids(prompt_of(given, IMAGE))
        return [
            token
            for one in ids
            for token in ([one] * (grid[0] * grid[1]) if one == self._image else [one])
        ]

    def places(self, ids: Sequence[int], grid: tuple[int, int]) -> npt.NDArray[np.int64]:
        return positions(ids, self._image, grid)

    def batch(self, given: Sequence[Example], grid: tuple[int, int]) -> Batch:
        rows = [self._chat(one, grid) for one in given]
        longest = -(-max(len(ids) for ids, _ in rows) // _ROUND) * _ROUND
        token_ids = np.full((len(rows), longest), self._pad, np.int64)
        is_answer = np.zeros((len(rows), longest), bool)
        places = np.zeros((len(rows), 3, longest), np.int64)
        for row, (ids, answers) in enumerate(rows):
            token_ids[row, : len(ids)] = ids
            is_answer[row, : len(ids)] = answers
            places[row, :, : len(ids)] = self.places(ids, grid)
        shown = [as_shown(picture, grid) for one in given for picture in one.pictures]
        size = (0, grid[0] * SIDE, grid[1] * SIDE, 3)
        pictures = np.stack(shown) if shown else np.zeros(size, np.uint8)
        return Batch(token_ids, places, is_answer, pictures)

    def _chat(self, given: Example, grid: tuple[int, int]) -> tuple[list[int], list[bool]]:
        ids = self.prompt(given, grid)
        is_answer = [False] * len(ids)
        for number, (question, answer) in enumerate(given.turns):
            if number:
                asked = f"\n{TURN_START}user\n{question}{TURN_END}\n{TURN_START}assistant\n"
                more = self._ids(asked)
                ids += more
                is_answer += [False] * len(more)
            said = self._ids(answer + TURN_END)
            ids += said
            is_answer += [True] * len(said)
        return ids, is_answer


def as_shown(picture: Image.Image, grid: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """[height, width, 3]: in the size of the grid, as the image processor resizes."""
    size = grid[1] * SIDE, grid[0] * SIDE
    return np.asarray(picture.resize(size, Image.Resampling.BICUBIC))


def drawn_size(grid: tuple[int, int], random: Random) -> tuple[int, int]:
    """Width and height of a picture as it is drawn."""
    scale = random.uniform(_SMALLEST, _LARGEST)
    return round(grid[1] * SIDE * scale), round(grid[0] * SIDE * scale)


def split_of(name: str, folders: Sequence[Path]) -> Split:
    families = find_fonts(name, folders)
    if not families:
        raise FileNotFoundError(f"no font to train with in {', '.join(map(str, folders))}")
    return train_split(families) if name == "train" else held_out_split(families)


def held_out(kind: str, count: int, split: Split, seed: int = 7) -> list[Example]:
    """Of one kind, the same on every machine that has the same fonts."""
    random = Random(f"{seed} {kind}")
    return [example(kind, drawn_size((8, 8), random), split, random) for _ in range(count)]


class Batches:
    """An endless supply from worker processes."""

    def __init__(
        self, tokenizer: Tokenizer, folders: Sequence[Path], *, workers: int, chats: int, seed: int
    ) -> None:
        """chats: in a batch."""
        context = multiprocessing.get_context("fork")
        self._queue: Any = context.Queue(4 * workers)
        self._processes = [
            context.Process(
                target=_work,
                args=(self._queue, tokenizer.to_str(), folders, chats, f"{seed} {number}"),
                daemon=True,
            )
            for number in range(workers)
        ]
        for process in self._processes:
            process.start()
        # A thread reads what comes, so that who trains never waits for a copy.
        self._read: queue.Queue[Batch | Exception] = queue.Queue(_READ)
        threading.Thread(target=self._reader, daemon=True).start()

    def _reader(self) -> None:
        while True:
            self._read.put(self._queue.get())

    def take(self, *, wait: bool) -> Batch | None:
        """None if there is none yet, unless ``wait``. Raises what a worker raised."""
        try:
            found = self._read.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _work(into: Any, tokenizer: str, folders: Sequence[Path], chats: int, seed: str) -> None:
    try:
        encoder, split = Encoder(Tokenizer.from_str(tokenizer)), split_of("train", folders)
        random = Random(seed)
        while True:
            grid = random.choice(_GRIDS)
            supply = (next(examples(drawn_size(grid, random), split, random)) for _ in range(chats))
            into.put(encoder.batch(list(islice(supply, chats)), grid))
    except Exception as error:
        into.put(error)
