"""How much of a batch an encoder computes before it lets others have the cores.

Beside a chat model the two take turns. The time that the encoder waits for its turn is the chat's step; what it then
computes is at most SHARE of that, so that the time between two tokens grows by no more. It is cut by texts, by layers,
and a layer of a long text by tokens: first the keys and values of all, then what follows from them. Plain arithmetic.
"""

from dataclasses import dataclass
from typing import Final, Literal

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
LEAST_ROWS: Final = 32
"""Tokens of a part of a layer: fewer would read the weights more often than they multiply."""

Part = Literal["layers", "keys", "rest"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some layers of a batch, or of one layer a part of the work for some of the batch's tokens."""

    first_layer: int
    end_layer: int
    part: Part = "layers"
    first_row: int = 0
    end_row: int = 0
    """Of a part; of whole layers all tokens are computed."""


class Pieces:
    """Plans pieces by what the ones before have taken."""

    def __init__(self, layers: int, most_tokens: int) -> None:
        """most_tokens: of a batch."""
        self._layers = layers
        self._most_tokens = most_tokens
        self._units_s: dict[Part, float] = {}
        """What one token takes, in a layer or in a part of it."""
        self._others_step_s = 0.0
        self._others_until_s = 0.0

    def waited(self, waited_s: float, now_s: float) -> None:
        """Notes how long the encoder has waited for its turn."""
        if waited_s < _NOTICED_S:
            return
        known = self._others_step_s if now_s < self._others_until_s else waited_s
        self._others_step_s = _OLD * min(known, waited_s) + (1 - _OLD) * waited_s
        self._others_until_s = now_s + max(_REMEMBERED_S, 4 * waited_s)

    def computed(self, piece: Piece, tokens: int, seconds: float) -> None:
        """Notes what a piece of a batch of so many tokens has taken."""
        whole = piece.part == "layers"
        count = tokens * (piece.end_layer - piece.first_layer) if whole else piece.end_row - piece.first_row
        unit_s = seconds / count
        self._units_s[piece.part] = _OLD * self._units_s.get(piece.part, unit_s) + (1 - _OLD) * unit_s

    def seconds(self, now_s: float) -> float:
        """Returns how long the next piece may take."""
        if now_s >= self._others_until_s:
            return ALONE_S
        return min(max(SHARE * self._others_step_s, _LEAST_S), ALONE_S)

    def tokens(self, now_s: float) -> int:
        """Returns how many tokens the next batch should have; a text may be longer."""
        unit_s = self._units_s.get("layers")
        if unit_s is None or now_s >= self._others_until_s:
            return self._most_tokens
        return max(1, min(self._most_tokens, int(self.seconds(now_s) / unit_s)))

    def after(self, piece: Piece | None, tokens: int, now_s: float) -> Piece:
        """Returns the piece of a batch of so many tokens that comes after one; None: its first."""
        if piece is not None and piece.part != "layers":
            if piece.end_row < tokens:
                return self._part(piece.part, piece.first_layer, piece.end_row, tokens, now_s)
            if piece.part == "keys":
                return self._part("rest", piece.first_layer, 0, tokens, now_s)
        first = 0 if piece is None else piece.end_layer
        unit_s = self._units_s.get("layers")
        layers = 1 if unit_s is None else int(self.seconds(now_s) / (unit_s * tokens))
        is_long = tokens > (self._most_tokens if unit_s is None else LEAST_ROWS)
        if is_long and (unit_s is None or layers == 0):
            return self._part("keys", first, 0, tokens, now_s)
        return Piece(first, min(first + max(1, layers), self._layers))

    def _part(self, part: Part, layer: int, first_row: int, tokens: int, now_s: float) -> Piece:
        """Returns a part of a layer from a token on; the layer's parts that are left have as many tokens each."""
        unit_s = self._units_s.get(part, self._units_s.get("layers"))
        left = tokens - first_row
        most = LEAST_ROWS if unit_s is None else max(LEAST_ROWS, int(self.seconds(now_s) / unit_s))
        parts = -(-left // most)
        return Piece(layer, layer + 1, part, first_row, first_row - (-left // parts))
