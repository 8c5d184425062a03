"""The conversation of a terminal chat: a guest's, kept in this process, or a user's, kept by the service.

Both raise OpenAIError. They know nothing of how a chat is shown.
"""

import json
from collections.abc import Sequence
from typing import Protocol

from openai import OpenAI

from app.client import answers, kept_chat
from app.client.attached import named
from app.client.turns import Asking, Message, Pieces

_GO_ON = "Go on exactly where your last answer stopped. Repeat nothing of it."
_SPEAKERS = {"user": "You", "assistant": "Answer"}


class Conversation(Protocol):
    """The interface of both kinds of conversation."""

    def answer(self, asking: Asking, question: str) -> Pieces:
        """Streams the next turn's answer."""
        ...

    def answered(self, asked: Message, answer: str, instead_of: str | None) -> None:
        """Records a turn with its answer, complete or not. instead_of: the question that it replaces."""
        ...

    def answer_instead(self, asking: Asking, old_question: str, question: str) -> Pieces:
        """Streams another answer in place of the last turn's."""
        ...

    def go_on(self, asking: Asking, question: str, answer: str) -> Pieces:
        """Streams the continuation of the last answer, which is incomplete."""
        ...

    def went_on(self, client: OpenAI, asked: Message, answer: str) -> None:
        """Records the continued last answer."""
        ...

    def last_turn(self, client: OpenAI) -> tuple[Message, str] | None:
        """Returns the last question and its answer."""
        ...

    def question(self, client: OpenAI, number: int) -> str | None:
        """Returns the text of one question; the first has number 0."""
        ...

    def exported(self, client: OpenAI, form: str) -> bytes:
        """Exports the conversation as a file. form: md or json."""
        ...


class OwnConversation:
    """A guest's conversation, sent with each question."""

    def __init__(self) -> None:
        self.said: list[Message] = []

    def answer(self, asking: Asking, question: str) -> Pieces:
        return answers.completed(asking, [*_sent(self.said), Message("user", question, asking.files)])

    def answered(self, asked: Message, answer: str, instead_of: str | None) -> None:
        if instead_of is not None:
            self.said = self._before(instead_of)
        if answer.strip():
            self.said += [asked, Message("assistant", answer)]

    def answer_instead(self, asking: Asking, old_question: str, question: str) -> Pieces:
        return answers.completed(asking, [*_sent(self._before(old_question)), Message("user", question, asking.files)])

    def go_on(self, asking: Asking, question: str, answer: str) -> Pieces:
        return answers.completed(
            asking, _to_go_on(self._before(question), Message("user", question, asking.files), answer)
        )

    def went_on(self, client: OpenAI, asked: Message, answer: str) -> None:
        self.answered(asked, answer, asked.text)

    def last_turn(self, client: OpenAI) -> tuple[Message, str] | None:
        return (self.said[-2], self.said[-1].text) if self.said else None

    def question(self, client: OpenAI, number: int) -> str | None:
        return _question(self.said, number)

    def exported(self, client: OpenAI, form: str) -> bytes:
        if form == "json":
            messages = [{"role": one.role, "content": named(one.files, one.text)} for one in self.said]
            return json.dumps({"messages": messages}, ensure_ascii=False, indent=1).encode()
        parts = [f"## {_SPEAKERS[one.role]}\n\n{named(one.files, one.text)}\n" for one in self.said]
        return "\n".join(["# Conversation\n", *parts]).encode()

    def _before(self, question: str) -> list[Message]:
        is_last = self.said and self.said[-2].text == question
        return self.said[:-2] if is_last else self.said[:]


class KeptConversation:
    """A user's conversation. It begins with what the user has said as a guest."""

    def __init__(self, conversation_id: str | None, own: OwnConversation, thinking: str | None = None) -> None:
        """conversation_id: None: the conversation begins with its first question."""
        self.id = conversation_id
        self.thinking = thinking
        """How much the model thinks in it, for when it begins."""
        self._own = own

    def answer(self, asking: Asking, question: str) -> Pieces:
        yield from kept_chat.answer(asking, self._begun(asking.client), question)

    def answered(self, asked: Message, answer: str, instead_of: str | None) -> None:
        """Does nothing: the service has stored the turn."""

    def answer_instead(self, asking: Asking, old_question: str, question: str) -> Pieces:
        yield from kept_chat.answer_instead(asking, self._begun(asking.client), old_question, question)

    def go_on(self, asking: Asking, question: str, answer: str) -> Pieces:
        before = self._before(asking.client, question)
        said = _to_go_on(before, Message("user", question, asking.files), answer)
        yield from answers.completed(asking, said, cache_key=self.id)

    def went_on(self, client: OpenAI, asked: Message, answer: str) -> None:
        turn = [asked, Message("assistant", answer)]
        kept_chat.settle(client, self._begun(client), [*self._before(client, asked.text), *turn])

    def last_turn(self, client: OpenAI) -> tuple[Message, str] | None:
        said = kept_chat.last_turns(client, self.id, 2) if self.id is not None else self._own.said[-2:]
        is_turn = [one.role for one in said] == ["user", "assistant"]
        return (said[0], said[1].text) if is_turn else None

    def question(self, client: OpenAI, number: int) -> str | None:
        return _question(self._own.said if self.id is None else kept_chat.said(client, self.id), number)

    def exported(self, client: OpenAI, form: str) -> bytes:
        return self._own.exported(client, form) if self.id is None else kept_chat.exported(client, self.id, form)

    def _begun(self, client: OpenAI) -> str:
        if self.id is None:
            self.id = kept_chat.begin(client, self._own.said, self.thinking)
            self._own.said = []
        return self.id

    def _before(self, client: OpenAI, question: str) -> list[Message]:
        """Returns the messages before the last question, if that is `question`; the service may not have it yet."""
        said = kept_chat.said(client, self._begun(client))
        questions = [place for place, one in enumerate(said) if one.role == "user"]
        is_last = questions and said[questions[-1]].text.strip() == question.strip()
        return said[: questions[-1]] if is_last else said


def _question(said: Sequence[Message], number: int) -> str | None:
    questions = [one.text for one in said if one.role == "user"]
    return questions[number] if number < len(questions) else None


def _sent(said: Sequence[Message]) -> list[Message]:
    """Strips white space around answers."""
    return [Message(one.role, one.text.strip()) if one.role == "assistant" else one for one in said]


def _to_go_on(before: Sequence[Message], asked: Message, answer: str) -> list[Message]:
    return [*_sent(before), asked, Message("assistant", answer), Message("user", _GO_ON)]
