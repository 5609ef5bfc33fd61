"""Finds the lines of a batch in its input file, a piece at a time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from gateway.batches.lines import check_target, decode_line, error_of, error_result
from gateway.errors import InvalidRequestError, PayloadTooLarge
from tenants.batch_queue import Batch, BatchQueue, NewLine
from tenants.files import Files

MAX_LINES = 50_000
MAX_ERRORS = 50
"""Of a batch's lines that its object lists; the error file has all."""
_LINES_AT_ONCE = 500
_EMPTY_AT_ONCE = 4096
"""Lines without anything in them between which the event loop runs."""


class Validation:
    """One pass over the file. Lines that cannot run get their result here; the others run."""

    def __init__(self, queue: BatchQueue, files: Files, max_line_bytes: int) -> None:
        self._queue = queue
        self._files = files
        self._max_line_bytes = max_line_bytes

    async def run(self, batch: Batch) -> None:
        """Begin the batch, or fail it if none of its lines can run. Raises ``TenantsError``."""
        errors: list[dict[str, Any]] = []
        seen: set[bytes] = set()
        lines: list[NewLine] = []
        num_lines = num_failed = 0
        async for number, start, text, is_too_long in self._texts(batch):
            num_lines += 1
            if num_lines > MAX_LINES:
                await self._fail(batch, "too_many_lines", f"At most {MAX_LINES} lines in a batch.")
                return
            line = self._line(batch, number, start, text, is_too_long, seen, errors)
            num_failed += line.result is not None
            lines.append(line)
            if len(lines) == _LINES_AT_ONCE:
                await self._queue.put_lines(batch, lines)
                lines.clear()
        if lines:
            await self._queue.put_lines(batch, lines)
        if num_lines == 0:
            await self._fail(batch, "empty_file", "The input file has no lines, or is gone.")
        elif num_failed == num_lines:
            await self._queue.fail(batch, msgspec.json.encode(errors))
        else:
            await self._queue.begin(batch, num_lines, num_failed, msgspec.json.encode(errors))

    async def give_up(self, batch: Batch) -> None:
        """Fail a batch that was begun too often."""
        await self._fail(batch, "server_error", "The servers that read the input file all ended.")

    async def _fail(self, batch: Batch, code: str, message: str) -> None:
        error = {"code": code, "message": message, "param": "input_file_id", "line": None}
        await self._queue.fail(batch, msgspec.json.encode([error]))

    def _line(
        self,
        batch: Batch,
        number: int,
        start: int,
        text: bytes,
        is_too_long: bool,
        seen: set[bytes],
        errors: list[dict[str, Any]],
    ) -> NewLine:
        custom_id = ""
        try:
            if is_too_long:
                raise PayloadTooLarge(f"A line has at most {self._max_line_bytes} bytes.")
            line = decode_line(text)
            custom_id = line.custom_id
            check_target(line, batch.endpoint)
            digest = hashlib.blake2b(custom_id.encode(), digest_size=12).digest()
            if digest in seen:
                raise InvalidRequestError(
                    "Another line has it already.", param="custom_id", code="duplicate_custom_id"
                )
            seen.add(digest)
        except (InvalidRequestError, PayloadTooLarge) as error:
            said = error_of(error, number)
            if len(errors) < MAX_ERRORS:
                errors.append(said)
            result = error_result(f"{batch.id}_{number}", custom_id or None, said)
            return NewLine(number, custom_id, start, len(text), result)
        return NewLine(number, custom_id, start, len(text), None)

    async def _texts(self, batch: Batch) -> AsyncIterator[tuple[int, int, bytes, bool]]:
        """The number of each line that is not empty, where it begins, its text, and whether it is
        longer than it may be; of such a line there is no more than the beginning."""
        rest, start, is_too_long, number = b"", 0, False, 0
        async for piece in self._files.content(batch.tenant_id, batch.input_file_id):
            *whole, rest = (rest + piece).split(b"\n")
            for text in whole:
                number += 1
                if text.strip() or is_too_long:
                    yield number, start, text, is_too_long or len(text) > self._max_line_bytes
                elif number % _EMPTY_AT_ONCE == 0:
                    await asyncio.sleep(0)
                start, is_too_long = start + len(text) + 1, False
            if len(rest) > self._max_line_bytes:
                start, rest, is_too_long = start + len(rest), b"", True
            await asyncio.sleep(0)
        if rest.strip() or is_too_long:
            yield number + 1, start, rest, is_too_long or len(rest) > self._max_line_bytes
