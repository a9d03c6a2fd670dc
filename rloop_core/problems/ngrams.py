"""Index of n-grams of words: sorted arrays of hashes, 12 bytes per n-gram, with bulk look-up.

The hash of an n-gram is sum_k v(w_k) B^k modulo 2^64, where v mixes the bits of a word's number. The probability of a
collision among a million n-grams and a million others is 5e-8; callers compare the words of a pair to be sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Words = Sequence[str]
Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

_BASE = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class NgramIndex:
    """The n-grams of some texts.

    Args:
        texts: Each a sequence of words.
        n: Words in an n-gram.
        common: An n-gram in this many texts is boilerplate; its words are removed from all texts, indexed and queried.

    Attributes:
        texts: The texts without common n-grams.
    """

    def __init__(self, texts: Iterable[Words], n: int, common: int) -> None:
        given = [tuple(text) for text in texts]
        self._n = n
        self._numbers: dict[str, int] = {}
        for text in given:
            for word in text:
                self._numbers.setdefault(word, len(self._numbers) + 1)
        hashes, owners, _ = self._windows(given)
        distinct = np.unique(np.stack([hashes, owners.astype(np.uint64)]), axis=1)[0]
        values, counts = np.unique(distinct, return_counts=True)
        self._common: Hashes = values[counts >= common]
        self.texts = self.without_common(given)
        hashes, owners, _ = self._windows(self.texts)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._owners = hashes[order], owners[order].astype(np.uint32)

    def without_common(self, texts: Sequence[Words]) -> list[tuple[str, ...]]:
        """Return the texts without common n-grams."""
        whole = [tuple(text) for text in texts]
        if not len(self._common):
            return whole
        hashes, owners, starts = self._windows(whole)
        place = np.minimum(np.searchsorted(self._common, hashes), len(self._common) - 1)
        covered: dict[int, set[int]] = {}
        for at in np.flatnonzero(self._common[place] == hashes):
            covered.setdefault(int(owners[at]), set()).update(range(int(starts[at]), int(starts[at]) + self._n))
        for owner, places in covered.items():
            whole[owner] = tuple(word for place, word in enumerate(whole[owner]) if place not in places)
        return whole

    def pairs(self, texts: Sequence[Words]) -> Iterator[tuple[int, int]]:
        """Yield (index of a given text, index of an indexed text) for pairs that share an n-gram, in order, each once.

        Pass the texts through `without_common` first.
        """
        hashes, owners, _ = self._windows(texts)
        first = np.searchsorted(self._hashes, hashes, side="left")
        last = np.searchsorted(self._hashes, hashes, side="right")
        hits = np.flatnonzero(last > first)
        yield from sorted(
            {(int(owners[hit]), int(other)) for hit in hits for other in self._owners[first[hit] : last[hit]]}
        )

    def _windows(self, texts: Sequence[Words]) -> tuple[Hashes, Indices, Indices]:
        """Return hash, text index and position of every n-gram of known words; each of shape [n-grams]."""
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        known = self._numbers.get
        ids = np.fromiter((known(word, 0) for text in texts for word in text), np.uint64, int(lengths.sum()))
        count = len(ids) - self._n + 1
        if count < 1:
            return np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
        owner = np.repeat(np.arange(len(texts)), lengths)
        starts = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        values = _scrambled(ids)
        hashes = np.zeros(count, np.uint64)
        for k in range(self._n):
            hashes = hashes * np.uint64(_BASE) + values[k : k + count]
        unknown = np.concatenate([[0], np.cumsum(ids == 0)])
        whole = (owner[:count] == owner[self._n - 1 :]) & (unknown[self._n :] == unknown[:count])
        return hashes[whole], owner[:count][whole], starts[:count][whole]


def _scrambled(ids: Hashes) -> Hashes:
    """Mix bits by SplitMix64, so that sums of neighbouring numbers do not collide."""
    mixed = ids * np.uint64(_BASE)
    for shift, factor in zip((30, 27), _MIX, strict=True):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
