"""How much of a batch an encoder computes before it lets others have the cores.

Beside a chat model the two take turns. The time that the encoder waits for its turn is the chat's step; what it then
computes is at most SHARE of that, so that the time between two tokens grows by no more. It is cut by tokens, and by
layers; the least is one layer of one text. Plain arithmetic.
"""

from typing import Final

ALONE_S: Final = 0.02
"""The longest piece while nobody else computes: how long the first step of others may wait."""
SHARE: Final = 0.3
_LEAST_S: Final = 0.0005
_NOTICED_S: Final = 0.0003
"""A longer wait for the cores means that somebody else computes."""
_REMEMBERED_S: Final = 0.25
"""So long after it others are expected: their next step may begin while the encoder computes."""
_OLD: Final = 0.8
"""The weight of what was known before a new measurement."""


class Pieces:
    """Plans pieces by what the ones before have taken."""

    def __init__(self, layers: int, most_tokens: int) -> None:
        """most_tokens: of a batch."""
        self._layers = layers
        self._most_tokens = most_tokens
        self._unit_s = 0.0  # of one token in one layer; 0: not known yet
        self._others_step_s = 0.0
        self._others_until_s = 0.0

    def waited(self, waited_s: float, now_s: float) -> None:
        """Notes how long the encoder has waited for its turn."""
        if waited_s < _NOTICED_S:
            return
        known = self._others_step_s if now_s < self._others_until_s else waited_s
        self._others_step_s = _OLD * min(known, waited_s) + (1 - _OLD) * waited_s
        self._others_until_s = now_s + max(_REMEMBERED_S, 4 * waited_s)

    def computed(self, tokens: int, layers: int, seconds: float) -> None:
        """Notes what a piece has taken."""
        unit_s = seconds / (tokens * layers)
        self._unit_s = unit_s if not self._unit_s else _OLD * self._unit_s + (1 - _OLD) * unit_s

    def seconds(self, now_s: float) -> float:
        """Returns how long the next piece may take."""
        if now_s >= self._others_until_s:
            return ALONE_S
        return min(max(SHARE * self._others_step_s, _LEAST_S), ALONE_S)

    def tokens(self, now_s: float) -> int:
        """Returns how many tokens the next batch should have; a text may be longer."""
        if not self._unit_s or now_s >= self._others_until_s:
            return self._most_tokens
        return max(1, min(self._most_tokens, int(self.seconds(now_s) / self._unit_s)))

    def end_layer(self, first: int, tokens: int, now_s: float) -> int:
        """Returns the layer before which the next piece ends, which begins with layer `first`."""
        if not self._unit_s:
            return min(first + 1, self._layers)
        return min(first + max(1, int(self.seconds(now_s) / (self._unit_s * tokens))), self._layers)
