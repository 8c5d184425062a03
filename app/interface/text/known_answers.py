"""Earlier answers in a prompt, with the tokens that the model generated.

A tokenizer may choose others for the same text, and then the cached KV pages of what follows would not be found.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from tokenizers import Encoding

from app.interface.text.model_tokenizer import ModelTokenizer
from app.interface.wire.chat import Message


class KnownAnswers:
    """The model's own tokens of answers, by their texts."""

    def __init__(
        self, answers: Mapping[str, Sequence[int]], tokenizer: ModelTokenizer, end_tokens: Collection[int]
    ) -> None:
        """answers: tokens that do not spell the text are not used. end_tokens: those that are not part of an answer."""
        self._answers = {text: token_ids for text, token_ids in answers.items() if text}
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens

    def tokens(self, messages: Iterable[Message], text: str, encoding: Encoding) -> list[int]:
        """Returns the tokens of `text`, a rendering of these messages, with the model's own for known answers.

        encoding: of `text`. An answer whose text does not begin and end at a token boundary is not replaced.
        """
        if not self._answers:
            return encoding.ids
        offsets, token_ids, done, place = encoding.offsets, list[int](), 0, 0
        starts = {start: index for index, (start, end) in reversed(list(enumerate(offsets))) if end > start}
        ends = {end: index + 1 for index, (start, end) in enumerate(offsets) if end > start}
        for message in messages:
            content = message.content if message.role == "assistant" else None
            if not isinstance(content, str) or (known := self._answers.get(content)) is None:
                continue
            begin = text.find(content, place)
            if begin < 0:
                continue
            place = begin + len(content)
            first, end = starts.get(begin), ends.get(place)
            own = [token for token in known if token not in self._end_tokens]
            if first is not None and end is not None and first >= done and self._tokenizer.text(own) == content:
                token_ids += encoding.ids[done:first] + own
                done = end
        return token_ids + encoding.ids[done:]
