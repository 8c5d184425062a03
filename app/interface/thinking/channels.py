"""gpt-oss's channels (the harmony format): an output is messages, each with a header that names its recipient.

<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|> <|channel|>commentary
to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

`analysis` is a thought, `final` the answer, `commentary` without a recipient is shown before it, and a message to a
function is a call. The recipient may also stand before the channel. It knows no token: special tokens come as their
names after `TOKEN_SIGN`, so that an answer, or a call's arguments, may mention them. If a vocabulary has no such
tokens, the marks are text, and only one after which the format continues ends a message.
"""

import re
from typing import Literal

from app.interface.thinking.possible_start import possible_start

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
CALL_HEAD = f"{CHANNEL}commentary to=functions."
"""The normalized beginning of every function call; its name and `MESSAGE` follow, wherever its recipient stood."""

TOKEN_SIGN = "\ue000"
"""Prefixes the name of a mark that is a special token; no text contains it."""

_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(rf"{re.escape(CHANNEL)}\s*(\w+)")
_ROLE = re.compile(rf"{re.escape(START)}\s*([\w.-]+)")
_MAX_HEADER_CHARACTERS = 512
_FUNCTIONS = "functions."

Kind = Literal["thought", "answer", "call"]


class _Marks:
    """The marks at which messages begin and end. sign: precedes each mark."""

    def __init__(self, sign: str) -> None:
        self.sign = sign
        self.start, self.channel = sign + START, sign + CHANNEL
        self.message = sign + MESSAGE
        self.ends = tuple(sign + end for end in (END, CALL, RETURN))
        channels = [self.channel + name for name in ("analysis", "commentary", "final")]
        ended = [end + going_on for end in self.ends for going_on in (self.start, *channels)]
        self.boundaries = (f"{self.start}assistant", *channels, *ended)
        longest_first = sorted(self.boundaries, key=len, reverse=True)
        self.boundary = re.compile("|".join(map(re.escape, longest_first)))
        self.header_end = re.compile("|".join(map(re.escape, (self.message, *self.ends))))
        self.beginnings = (self.channel, self.start, "to=")


_TEXT, _TOKENS = _Marks(""), _Marks(TOKEN_SIGN)


class ChannelSplitter:
    """Splits one output into thought and answer; calls stay in the answer, each after `CALL_HEAD`.

    The result does not depend on how the text is split. An output without channels is an answer.
    """

    __slots__ = ("_has_text", "_held", "_kind", "_marks", "_shown", "_stage")

    is_over = False
    """Never: a thought may follow a text."""

    def __init__(self, *, marks_are_tokens: bool, begun: Kind | None = None) -> None:
        """begun: the message that the output goes on with; None: it begins one."""
        self._marks = _TOKENS if marks_are_tokens else _TEXT
        self._stage: Literal["beginning", "header", "body"] = "beginning" if begun is None else "body"
        self._kind: Kind = begun or "answer"
        self._held = ""
        self._has_text = begun is not None  # whether the message has shown any
        self._shown: set[Kind] = set() if begun is None else {begun}  # kinds of messages that have shown something

    @property
    def is_undecided(self) -> bool:
        """Whether the tokens so far are not assigned yet."""
        return self._stage != "body"

    @property
    def in_header(self) -> bool:
        """Whether a header has begun, which is hidden."""
        return self._stage == "header"

    @property
    def is_thinking(self) -> bool:
        """Whether a thought has begun and not ended."""
        return self._stage == "body" and self._kind == "thought"

    @property
    def is_in_thought(self) -> bool:
        """Whether the output would end within a thought if it ended here."""
        return self.is_thinking

    @property
    def has_thought(self) -> bool:
        """Whether the last message begun is a thought."""
        return self._kind == "thought"

    def feed(self, text: str) -> tuple[str, str]:
        """Returns what the text adds to the thought and to the answer."""
        self._held += text
        thought, answer = list[str](), list[str]()
        while self._step(thought, answer):
            pass
        return "".join(thought), "".join(answer)

    def finish(self) -> tuple[str, str]:
        """Returns what was held back at the end of the output."""
        held, self._held = self._held, ""
        if self._stage == "header" and held.lstrip().startswith(self._marks.beginnings[:2]):
            return "", ""
        thought, answer = list[str](), list[str]()
        end = next((end for end in self._marks.ends if held.endswith(end)), None)
        if end is not None:
            self._end_message(held.removesuffix(end), thought, answer)
        else:
            self._show(held.rstrip() if self.is_thinking else held, thought, answer)
        return "".join(thought), "".join(answer)

    def _step(self, thought: list[str], answer: list[str]) -> bool:
        """Reads one piece; returns False if more text is needed."""
        match self._stage:
            case "beginning":
                return self._begin()
            case "header":
                return self._read_header(answer)
        marks = self._marks
        boundary = marks.boundary.search(self._held)
        if boundary is None:
            certain = self._certain()
            self._show(self._held[:certain], thought, answer)
            self._held = self._held[certain:]
            return False
        self._end_message(self._held[: boundary.start()], thought, answer)
        header = boundary[0][max(boundary[0].find(marks.start), boundary[0].find(marks.channel)) :]
        self._held = header + self._held[boundary.end() :]
        self._stage = "header"
        return True

    def _begin(self) -> bool:
        start = self._held.lstrip()
        if start.startswith(self._marks.beginnings):
            self._stage = "header"
        elif any(mark.startswith(start) for mark in self._marks.beginnings):
            return False
        else:
            self._stage = "body"
        return True

    def _read_header(self, answer: list[str]) -> bool:
        end = self._marks.header_end.search(self._held)
        if end is None and len(self._held) < _MAX_HEADER_CHARACTERS:
            return False
        header = self._held[: end.start()].replace(TOKEN_SIGN, "") if end is not None else ""
        self._held = self._held[end.end() :] if end is not None else self._held
        if end is not None and end[0] != self._marks.message:  # a message without text
            return bool(self._held)
        self._stage, self._has_text = "body", False
        recipient, role = _RECIPIENT.search(header), _ROLE.match(header.lstrip())
        channels = _CHANNEL.findall(header)
        if recipient is not None and recipient[1].startswith(_FUNCTIONS):
            self._kind = "call"
            answer.append(f"{CALL_HEAD}{recipient[1].removeprefix(_FUNCTIONS)}{MESSAGE}")
        elif recipient is not None or channels[-1:] == ["analysis"] or (role is not None and role[1] != "assistant"):
            self._kind = "thought"
        else:
            self._kind = "answer"
        return True

    def _certain(self) -> int:
        """Returns how many held characters can be shown. White space counts as thought only if more follows."""
        certain = min(possible_start(self._held, mark) for mark in self._marks.boundaries)
        return len(self._held[:certain].rstrip()) if self.is_thinking else certain

    def _end_message(self, text: str, thought: list[str], answer: list[str]) -> None:
        """text: the end of the message."""
        if self._kind == "call":
            text = text if self._has_text or text.strip() else "{}"
            text += CALL
        self._show(text.rstrip() if self.is_thinking else text, thought, answer)

    def _show(self, text: str, thought: list[str], answer: list[str]) -> None:
        if self._kind == "thought" and not self._has_text:
            text = text.lstrip()
        if not text:
            return
        text = text.replace(self._marks.sign, "") if self._marks.sign else text
        is_first = not self._has_text and self._kind in self._shown
        (thought if self._kind == "thought" else answer).append(f"\n\n{text}" if is_first else text)
        self._has_text = True
        if self._kind != "call":
            self._shown.add(self._kind)
