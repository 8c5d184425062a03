"""One request's guesses at its next tokens, from its own text: what followed where its last tokens stood before.

The idea is Saxena's (2023, "Prompt Lookup Decoding"). A text that is copied with changes is followed further: where the
copy says something else than its source, the guesses go on behind that place in the source until something fits better.

How likely a guess is to be right is learned by how many tokens before it agree with its source, from the request's own
text, also while none are computed. Knows neither what a guess costs nor the engine.
"""

from collections.abc import Sequence

_LONGEST_MATCH = 3
_SHORTEST_MATCH = 2
_AGREEMENT = 8
"""Tokens that agree, as far as they are counted."""
_ASTRAY = 3
"""After so many tokens that fit nowhere, the source is given up."""
_NEAR = 8
"""So many tokens around the place where a copy has left its source are searched for where it goes on."""
# Before anything is known, by the tokens that agree: a text is not expected to copy, but once it does, to go on.
_FIRST_CHANCES = (0.2, 0.2, 0.4, 0.55, 0.65, 0.75, 0.8, 0.85, 0.9)
_RATE = 0.12
_LEAST_CHANCE = 0.02


class NgramDrafter:
    """`tokens` is the engine's list of prompt and output, which grows."""

    __slots__ = (
        "_agreement",
        "_astray",
        "_begin",
        "_chances",
        "_followers",
        "_guesses",
        "_indexed",
        "_place",
        "_tokens",
    )

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._chances = list(_FIRST_CHANCES)
        self.forget()

    def forget(self) -> None:
        """Begins anew: tokens were taken out of the list."""
        self._followers: dict[tuple[int, ...], int] = {}
        self._indexed = 0
        self._guesses: list[int] = []
        self._begin = 0  # where the guesses stand
        self._place = 0  # where the source goes on; 0: nowhere
        self._agreement = 0  # tokens that agree before the first guess
        self._astray = 0  # guesses in a row that were wrong from the first on, and had hardly a reason

    def look_up(self, most: int) -> list[int]:
        """Guesses at the tokens that come next, at most so many; they are remembered until `learn`."""
        self._index()
        self._begin = self._find()
        self._place = 0  # until it is known what came
        # Where they reach the end of the text, they go on from their beginning.
        piece = self._tokens[self._begin : self._begin + most] if self._begin else []
        self._guesses = (piece * (most // len(piece) + 1))[:most] if piece else []
        return self._guesses

    def chances(self) -> list[float]:
        """Of each guess, that it is right and all before it are; those with next to none are left out."""
        chances: list[float] = []
        chance = 1.0
        for agreement in range(self._agreement, self._agreement + len(self._guesses)):
            chance *= self._chances[min(agreement, _AGREEMENT)]
            if chance < _LEAST_CHANCE:
                break
            chances.append(chance)
        return chances

    def learn(self, sampled: Sequence[int]) -> None:
        """What came instead of the guesses: each up to the first wrong one counts, computed or not."""
        if not sampled:
            return
        agreement = self._agreement
        for guess, token in zip(self._guesses, sampled, strict=False):
            level = min(agreement, _AGREEMENT)
            self._chances[level] += _RATE * ((guess == token) - self._chances[level])
            if guess != token:
                break
            agreement += 1
        self._astray = self._astray + 1 if agreement < _SHORTEST_MATCH else 0
        self._place = self._begin + len(sampled) if self._astray < _ASTRAY else 0

    def _find(self) -> int:
        """Where the next guesses stand; 0: nowhere. Sets `_agreement`."""
        tokens, place = self._tokens, self._place
        for length in range(_LONGEST_MATCH, _SHORTEST_MATCH - 1, -1):
            begin = self._followers.get(tuple(tokens[-length:]), 0)
            if begin:
                self._agreement = self._agreeing(begin, length)
                self._astray = 0
                return begin
        self._agreement = 0
        if not 0 < place < len(tokens):
            return 0
        last = tokens[-1]
        for offset in range(_NEAR):
            for near in (place + offset, place - offset):
                if 0 < near < len(tokens) and tokens[near - 1] == last:
                    self._agreement = 1
                    return near
        return place

    def _agreeing(self, begin: int, known: int) -> int:
        tokens = self._tokens
        end = len(tokens)
        agreement = known
        while agreement < min(_AGREEMENT, begin) and tokens[begin - 1 - agreement] == tokens[end - 1 - agreement]:
            agreement += 1
        return agreement

    def _index(self) -> None:
        """Notes what follows each pair and triple of tokens that something follows; the latest place counts."""
        tokens, followers = self._tokens, self._followers
        for end in range(max(self._indexed, _SHORTEST_MATCH), len(tokens)):
            followers[tokens[end - 2], tokens[end - 1]] = end
            if end >= _LONGEST_MATCH:
                followers[tokens[end - 3], tokens[end - 2], tokens[end - 1]] = end
        self._indexed = max(self._indexed, len(tokens))
