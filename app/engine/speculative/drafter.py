"""Prompt-lookup decoding: drafts the next tokens from an earlier place in the same text with the same last tokens.

Method: Saxena (2023, "Prompt Lookup Decoding"). The earlier place is called the source, which the output copies. When
the output differs from its source at one token, the draft continues behind that token in the source, until another
place fits better.

The acceptance probability is learned per request, by how many tokens before the draft agree with the source, also while
no draft is computed. Knows neither what a draft token costs nor the engine.
"""

from collections.abc import Sequence

_LONGEST_MATCH = 3
"""The lookup tries this many last tokens first, then fewer."""
_SHORTEST_MATCH = 2
_MOST_AGREEMENT = 8
"""Agreeing tokens are counted up to this number."""
_MOST_MISMATCHES = 3
"""After this many mismatches in a row the source is dropped."""
_NEAR = 8
"""How many tokens around a mismatch are searched for the place where the copy continues."""
_FIRST_CHANCES = (0.2, 0.2, 0.4, 0.55, 0.65, 0.75, 0.8, 0.85, 0.9)
"""Initial acceptance probabilities by number of agreeing tokens: few texts copy, but one that does continues."""
_RATE = 0.12
"""Weight of a new outcome in the running mean of a probability."""
_LEAST_CHANCE = 0.02
"""Draft tokens that are less likely to be reached are left out."""


class NgramDrafter:
    """A `Drafter` that looks up the last two or three tokens in the text."""

    __slots__ = (
        "_agreement",
        "_begin",
        "_chances",
        "_draft",
        "_followers",
        "_indexed",
        "_mismatches",
        "_source",
        "_tokens",
    )

    def __init__(self, tokens: list[int]) -> None:
        """`tokens`: the generation's list of prompt and output, which grows."""
        self._tokens = tokens
        self._chances = list(_FIRST_CHANCES)
        self.forget()

    def forget(self) -> None:
        """Drops the index, because tokens were removed from the list; the learned probabilities stay."""
        self._followers: dict[tuple[int, ...], int] = {}  # two or three tokens -> the index after their last occurrence
        self._indexed = 0  # number of tokens that `_followers` covers
        self._draft: list[int] = []
        self._begin = 0  # index of the first draft token in the text
        self._source = 0  # index at which the source continues; 0: there is no source
        self._agreement = 0  # tokens before the draft that agree with the source
        self._mismatches = 0  # in a row: the first draft token was wrong, and hardly anything before it agreed

    def look_up(self, most: int) -> list[int]:
        """Returns at most `most` draft tokens and keeps them for `learn`."""
        self._index()
        self._begin = self._find()
        self._source = 0  # `learn` sets it
        # A draft that reaches the end of the text continues at its own beginning.
        piece = self._tokens[self._begin : self._begin + most] if self._begin else []
        self._draft = (piece * (most // len(piece) + 1))[:most] if piece else []
        return self._draft

    def chances(self) -> list[float]:
        """For each draft token, the probability that it and all before it are accepted, without improbable ones."""
        chances: list[float] = []
        chance = 1.0
        for agreement in range(self._agreement, self._agreement + len(self._draft)):
            chance *= self._chances[min(agreement, _MOST_AGREEMENT)]
            if chance < _LEAST_CHANCE:
                break
            chances.append(chance)
        return chances

    def learn(self, sampled: Sequence[int]) -> None:
        """Compares the draft, computed or not, with the sampled tokens, up to the first rejected one."""
        if not sampled:
            return
        agreement = self._agreement
        for drafted, token in zip(self._draft, sampled, strict=False):
            level = min(agreement, _MOST_AGREEMENT)
            self._chances[level] += _RATE * ((drafted == token) - self._chances[level])
            if drafted != token:
                break
            agreement += 1
        self._mismatches = self._mismatches + 1 if agreement < _SHORTEST_MATCH else 0
        self._source = self._begin + len(sampled) if self._mismatches < _MOST_MISMATCHES else 0

    def _find(self) -> int:
        """Returns the index of the draft in the text; 0: there is none. Sets `_agreement`."""
        tokens, source = self._tokens, self._source
        for length in range(_LONGEST_MATCH, _SHORTEST_MATCH - 1, -1):
            begin = self._followers.get(tuple(tokens[-length:]), 0)
            if begin:
                self._agreement = self._agreeing(begin, length)
                self._mismatches = 0
                return begin
        self._agreement = 0
        if not 0 < source < len(tokens):
            return 0
        last = tokens[-1]
        for offset in range(_NEAR):
            for near in (source + offset, source - offset):
                if 0 < near < len(tokens) and tokens[near - 1] == last:
                    self._agreement = 1
                    return near
        return source

    def _agreeing(self, begin: int, known: int) -> int:
        """Counts the tokens before `begin` that agree with the last tokens; at least `known` do."""
        tokens = self._tokens
        end = len(tokens)
        agreement = known
        while agreement < min(_MOST_AGREEMENT, begin) and tokens[begin - 1 - agreement] == tokens[end - 1 - agreement]:
            agreement += 1
        return agreement

    def _index(self) -> None:
        """Adds to `_followers` the index after each pair and triple of tokens; later places replace earlier ones."""
        tokens, followers = self._tokens, self._followers
        for end in range(max(self._indexed, _SHORTEST_MATCH), len(tokens)):
            followers[tokens[end - 2], tokens[end - 1]] = end
            if end >= _LONGEST_MATCH:
                followers[tokens[end - 3], tokens[end - 2], tokens[end - 1]] = end
        self._indexed = max(self._indexed, len(tokens))
