"""Suffix decoding (Oliaro et al., arXiv 2411.04975): drafts from a request's own tokens and from
what finished requests said, as long as the repetition that suggests them.

The paper keeps suffix trees. Here the occurrences of a suffix are looked up and their continuations
counted, which is what a node of the tree would say of them, without the nodes.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.spec.base import TextProposer
from engine.spec.token_index import TokenIndex, match_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.request import Request
    from engine.spec.config import SpeculativeConfig

_MIN_MATCH = 2
# Occurrences looked at in each source, the latest first.
_MAX_OCCURRENCES = 32
_NO_TOKEN = 2**31 - 1
"""Between two outputs of a corpus; no vocabulary is that large."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """``token_ids[: end]`` ends like the request, in its last ``length`` tokens."""

    token_ids: Sequence[int]
    end: int
    length: int


class Outputs:
    """Finished outputs, one after another."""

    def __init__(self) -> None:
        self.token_ids = array("i")
        self.index = TokenIndex(self.token_ids, _MIN_MATCH)
        self.count = 0

    def add(self, output: Sequence[int]) -> None:
        self.token_ids.extend(output)
        self.token_ids.append(_NO_TOKEN)
        self.index.cover(len(self.token_ids))
        self.count += 1


class Corpus:
    """The outputs of one cache salt, in two generations: the older is forgotten as a whole."""

    def __init__(self) -> None:
        self.young, self.old = Outputs(), Outputs()

    @property
    def count(self) -> int:
        return self.young.count + self.old.count

    def add(self, output: Sequence[int], max_count: int) -> None:
        if 2 * (self.young.count + 1) > max_count:
            self.young, self.old = Outputs(), self.young
        self.young.add(output)


class SuffixProposer(TextProposer):
    """Nobody's drafts come from another's outputs: there is a corpus for each cache salt."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self._max_depth = config.max_tree_depth
        self._max_count = config.max_cached_requests
        self._spec_factor = config.max_spec_factor
        self._min_prob = config.min_token_prob
        self._own: dict[Request, TokenIndex] = {}
        self._corpora: OrderedDict[str, Corpus] = OrderedDict()
        """By salt, the one used last at the end."""

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        """The drafts with the highest expected number of hits, over all lengths of the match."""
        occurrences = self._occurrences(request)
        best: list[int] = []
        best_score = 0.0
        for length in sorted({occurrence.length for occurrence in occurrences}, reverse=True):
            limit = min(max_tokens, int(self._spec_factor * length))
            alike = [o for o in occurrences if o.length >= length]
            drafts, score = self._follow(alike, limit)
            if score > best_score:
                best, best_score = drafts, score
        return best

    def _occurrences(self, request: Request) -> list[Occurrence]:
        token_ids = request.token_ids
        own = self._own.get(request)
        if own is None:
            own = self._own[request] = TokenIndex(token_ids, _MIN_MATCH)
        own.cover(len(token_ids) - 1)
        sources: list[tuple[Sequence[int], TokenIndex]] = [(token_ids, own)]
        corpus = self._corpora.get(_salt(request))
        if corpus is not None:
            outputs = (corpus.young, corpus.old)
            sources += [(source.token_ids, source.index) for source in outputs]
        suffix = token_ids[-self._max_depth :]
        return [
            Occurrence(source, end, length)
            for source, index in sources
            for end in index.ends(suffix, _MAX_OCCURRENCES)
            if (length := match_length(source, end, suffix)) >= _MIN_MATCH
        ]

    def _follow(self, occurrences: list[Occurrence], limit: int) -> tuple[list[int], float]:
        """The commonest continuation, and its expected number of hits."""
        drafts: list[int] = []
        score = probability = 1.0
        while len(drafts) < limit:
            offset = len(drafts)
            counts = Counter(
                o.token_ids[o.end + offset]
                for o in occurrences
                if o.end + offset < len(o.token_ids)
            )
            del counts[_NO_TOKEN]
            if not counts:
                break
            token_id, count = counts.most_common(1)[0]
            probability *= count / len(occurrences)
            if probability < self._min_prob:
                break
            drafts.append(token_id)
            score += probability
            occurrences = [
                o
                for o in occurrences
                if o.end + offset < len(o.token_ids) and o.token_ids[o.end + offset] == token_id
            ]
        return drafts, score - 1.0

    def drop(self, request: Request) -> None:
        if self._own.pop(request, None) is None or self._max_count == 0:
            return
        output = request.token_ids[request.num_prompt_tokens :]
        if len(output) <= _MIN_MATCH:
            return
        salt = _salt(request)
        corpus = self._corpora.setdefault(salt, Corpus())
        self._corpora.move_to_end(salt)
        corpus.add(output, self._max_count)
        while sum(c.count for c in self._corpora.values()) > self._max_count:
            if len(self._corpora) == 1:
                corpus.old = Outputs()
                return
            self._corpora.popitem(last=False)


def _salt(request: Request) -> str:
    return request.block_table.region["salt"]
