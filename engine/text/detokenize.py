"""Turns token ids into text that can be sent: whole characters, and no part of a stop string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.messages import RequestOutput
from engine.text.tokenizer import Tokenizer


class StopStrings:
    """Searches for stop strings in a text that comes in pieces, in linear time.

    The stop string that ends first is reported; of several that end together, the longest.
    """

    def __init__(self, texts: Iterable[str], *, include_in_output: bool = False) -> None:
        # The longest first, so that it is reported if several end together.
        self._stops = [_StopString(text) for text in sorted(set(texts), key=len, reverse=True)]
        self._include = include_in_output
        self._held = ""
        self.stopped: str | None = None
        """The stop string that was found; no text is returned after it."""

    def push(self, text: str) -> str:
        """Take the next text, and return what certainly precedes a stop string; it may be empty."""
        if self.stopped is not None:
            return ""
        end, hit = len(text), None
        for stop in self._stops:
            found = stop.scan(text, end)
            if found is not None and (hit is None or found < end):
                end, hit = found, stop
        text = self._held + text
        if hit is not None:
            end += len(self._held)
            self._held, self.stopped = "", hit.text
            return text[:end] if self._include else text[: end - len(hit.text)]
        held = max(stop.matched for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Return what was held back, at the end of the text."""
        rest, self._held = self._held, ""
        return rest


class Detokenizer:
    """Detokenizes one output as its tokens come, in linear time.

    The joined text does not depend on how the ids were split.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        """``stop``: see ``StopStrings``. min_tokens: those that end within the text of the first
        ``min_tokens`` tokens are ignored."""
        self._decoder = tokenizer.text_decoder(skip_special_tokens=skip_special_tokens)
        self._stops = (
            StopStrings(stop, include_in_output=include_stop_str_in_output) if stop else None
        )
        self._include_stop = include_stop_str_in_output
        self._eos_token_ids = tokenizer.eos_token_ids
        self._tokens_to_ignore = min_tokens
        self.num_tokens = 0
        """Tokens pushed, up to the one with the end of the stop string."""

    @property
    def stopped(self) -> str | None:
        """The stop string that was found; no text is returned after it."""
        return None if self._stops is None else self._stops.stopped

    @property
    def is_settled(self) -> bool:
        """Whether the text of the next token does not depend on those before it."""
        return self._stops is None and self._decoder.is_settled

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is safe to emit now, possibly empty."""
        stops = self._stops
        if stops is None:  # then no token counts more than another
            self.num_tokens += len(token_ids)
            return self._decoder.push(token_ids)
        # One by one, because the tokens of a speculative step may continue after a stop string.
        texts = []
        for token_id in token_ids:
            if stops.stopped is not None:
                break
            self.num_tokens += 1
            text = self._decoder.push([token_id])
            texts.append(text if self.num_tokens <= self._tokens_to_ignore else stops.push(text))
        return "".join(texts)

    def push_output(self, output: RequestOutput) -> str:
        """``push`` the tokens of an output, and ``finish`` if it has a finish reason.

        A token that stopped the generation (EOS, or one of ``stop_token_ids``) has no text.
        """
        token_ids = output.new_token_ids
        if output.finish_reason == "stop" and token_ids and not self._include_stop:
            last = token_ids[-1]
            if last == output.stop_reason or last in self._eos_token_ids:
                token_ids = token_ids[:-1]
        text = self.push(token_ids)
        return text if output.finish_reason is None else text + self.finish()

    def finish(self) -> str:
        """The rest, when generation ended by itself."""
        if self._stops is None:
            return self._decoder.finish()
        return self._stops.push(self._decoder.finish()) + self._stops.finish()


class _StopString:
    """Searches for one string by the algorithm of Knuth, Morris and Pratt (1977): amortized
    constant time for each character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        """Length of the longest proper prefix of ``text`` that the scanned text ends with."""
        self._fallback = _borders(text)

    def scan(self, chunk: str, limit: int) -> int | None:
        """The index after the first match that ends in ``chunk[:limit]``; None if there is none."""
        pattern, fallback, matched = self.text, self._fallback, self.matched
        index = 0
        while index < limit:
            if matched == 0:
                index = chunk.find(pattern[0], index, limit)
                if index < 0:
                    break
            char = chunk[index]
            while matched and pattern[matched] != char:
                matched = fallback[matched]
            matched += pattern[matched] == char
            index += 1
            if matched == len(pattern):
                return index
        self.matched = matched
        return None


def _borders(pattern: str) -> list[int]:
    """``borders[n]``: the longest proper prefix of ``pattern[:n]`` that is also its suffix."""
    borders = [0, 0]
    for end in range(1, len(pattern)):
        length = borders[end]
        while length and pattern[length] != pattern[end]:
            length = borders[length]
        borders.append(length + (pattern[length] == pattern[end]))
    return borders
