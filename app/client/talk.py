"""The current conversation: asks, continues, retries, begins and opens others. Knows nothing of commands' names.

A user's conversation is kept by the service; a guest's is sent with each question. A question without an answer is
kept, to be asked again.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from openai import AuthenticationError, NotFoundError, OpenAIError

from app.client import kept_chat, login, thinking, v1, wordings
from app.client.account import Account, ChatError, chat_error, reason
from app.client.attached import named
from app.client.conversation import Conversation, KeptConversation, OwnConversation
from app.client.reader import Reader
from app.client.screen import Screen
from app.client.stop import stoppable
from app.client.turns import Asking, Context, Ended, File, Knobs, Message, Pieces, Sources, Thought, Usage

_SHOWN_TURNS = 4
_SEEDS = 2**31


@dataclass(frozen=True, slots=True)
class _Turn:
    """The last question with its files, and as much of its answer as there is."""

    asked: Message
    answer: str = ""
    instead_of: str | None = None
    """The question that it replaces, while it has no answer; None: no question."""


@dataclass(frozen=True, slots=True)
class _Written:
    """The received part of an answer."""

    text: str
    end: Ended | None
    seconds: float
    """Time from its first piece to its last."""
    is_stopped: bool
    failure: OpenAIError | None


class Talk:
    """One conversation at a time, at one service."""

    def __init__(
        self,
        account: Account,
        screen: Screen,
        reader: Reader,
        knobs: Knobs,
        *,
        model: str | None,
        conversation: str | None,
        is_new: bool,
    ) -> None:
        """model: None: the first served one. conversation: the user's conversation to continue; None: the newest one.

        is_new: whether to begin a new one.
        """
        self.account = account
        self.screen = screen
        self.reader = reader
        self.knobs = knobs
        self.model: v1.Model | None = None
        """None: not chosen yet, which may need a login first."""
        self.files: Sequence[File] = ()
        """What goes with the next question."""
        self.usage: Usage | None = None
        """Token usage of the last answer."""
        self.context: Context | None = None
        """What the model saw with the last answer."""
        self.has_failed = False
        """Whether a question got no answer, or an incomplete one."""
        self._wanted_model = model
        self._keeps: bool | None = None
        """Whether the service keeps the chat; None: unknown yet."""
        self._own = OwnConversation()
        self._kept = KeptConversation(conversation, self._own)
        self._last: _Turn | None = None
        self._is_begun = False
        self._is_new = is_new

    # --- what a person does

    def ask(self, question: str) -> None:
        """Asks one question and shows its answer."""
        turn, self.files = _Turn(Message("user", question, self.files)), ()
        if not self._is_ready():
            self._last, self.has_failed = turn, True
            return
        self._write(turn, lambda conversation, asking: conversation.answer(asking, question))

    def retry(self) -> None:
        """Asks the last question again with another seed; the new answer replaces the old one."""
        turn = self._last_turn()
        if turn is not None and self._is_ready():
            self._ask_again(turn, turn.asked.text)

    def edit(self) -> None:
        """Lets the user edit the last question, and asks it in place of the old one."""
        turn = self._last_turn()
        if turn is None:
            return
        question = self.reader.message(turn.asked.text).strip()
        if question and self._is_ready():
            self._ask_again(turn, question)

    def go_on(self) -> None:
        """Continues the last answer, which was stopped or cut."""
        turn = self._last_turn()
        if turn is None or not self._is_ready():
            return
        if not turn.answer:
            self.screen.say("The last question has no answer yet: /retry asks it again.")
            return
        self._write(turn, lambda conversation, asking: conversation.go_on(asking, turn.asked.text, turn.answer))

    def new(self) -> None:
        """Begins another conversation; a guest's earlier messages are dropped."""
        self._forget_turns()
        self._is_new = True

    def think(self, mode: str) -> None:
        """Chooses how much the model thinks in this chat, which keeps it. Raises ChatError, OpenAIError."""
        if self.model is None and not self.find_model():
            return
        assert self.model is not None
        thinking.check(mode, self.model)
        if self._kept.id is not None and self.keeps():
            kept_chat.keep_thinking(self.account.client, self._kept.id, mode)
        self._kept.thinking = mode
        self.knobs = replace(self.knobs, thinking=mode)

    def forget(self) -> None:
        """Drops the chat, because it is another user's now, or nobody's."""
        self._forget_turns()
        self.reader.forget()

    # --- stored conversations

    @property
    def conversation_id(self) -> str | None:
        """Id of the user's current conversation; None: it has not begun, or is a guest's."""
        return self._kept.id

    def keeps(self) -> bool:
        """Whether the service keeps the chat. Raises OpenAIError."""
        if self._keeps is None:
            self._keeps = login.is_held(self.account.client)
        return self._keeps

    def conversation(self) -> Conversation:
        """The current conversation. Raises OpenAIError."""
        return self._kept if self.keeps() else self._own

    def open(self, conversation_id: str) -> None:
        """Opens a conversation: shows how it ended, and has the service load it.

        Raises ChatError if there is none, and OpenAIError.
        """
        assert self.model is not None
        try:
            turns = kept_chat.last_turns(self.account.client, conversation_id, _SHOWN_TURNS)
        except NotFoundError as error:
            raise ChatError(f"there is no conversation {conversation_id} of yours") from error
        self._forget_turns()
        self._kept.id = conversation_id
        self.knobs = replace(self.knobs, thinking=kept_chat.thinking(self.account.client, conversation_id))
        for turn in turns:
            self.screen.say(f"{'> ' if turn.role == 'user' else ''}{wordings.shortened(named(turn.files, turn.text))}")
        warmed = kept_chat.warm(self.account.client, conversation_id, self.model.id, self.knobs.system)
        self.screen.say(f"{warmed.remembered_tokens:,} of {warmed.tokens:,} tokens remembered.")

    # --- beginning

    def begin(self) -> None:
        """Greets, and opens the user's conversation, if the service keeps any. Raises ChatError."""
        assert self.model is not None
        self.screen.say(wordings.greeting(self.model.id, self.account.url, self.account.session))
        self._is_begun = True
        has_gone_on = self._kept.id is not None and self._last is not None
        try:
            if not self.keeps() or self._own.said or self._is_new or has_gone_on:
                return
            if self._kept.id is None:
                self._kept.id = kept_chat.newest(self.account.client)
            if self._kept.id is not None:
                last = self._last
                self.open(self._kept.id)
                self._last = last  # a question that still waits for its answer
        except OpenAIError as error:
            self.screen.say(reason(error, self.account.url))

    def renew(self) -> None:
        """Handles a change of user or session."""
        self.model = None
        self._keeps = None

    def find_model(self) -> bool:
        """Chooses the model while the chat runs, or shows why there is none."""
        try:
            self.choose_model()
        except ChatError as error:
            self.screen.say(str(error))
            return False
        if self.model is None:
            self.screen.say(self.login_needed())
        return self.model is not None

    def choose_model(self) -> None:
        """Chooses a model, or leaves None if only users may list models, so that a login is needed.

        Raises ChatError.
        """
        url, account = self.account.url, self.account
        try:
            listed = v1.models(account.client)
        except OpenAIError as error:
            if isinstance(error, AuthenticationError) and not account.has_key and self._has_users():
                if account.session is not None:
                    account.forget_ended()
                    self.renew()
                return
            raise chat_error(error, url) from error
        if not listed:
            raise ChatError(f"{url} serves no model")
        served = {model.id: model for model in listed if model.can_chat}
        mute = [model.id for model in listed if not model.can_chat]
        if not served or self._wanted_model in mute:
            name = self._wanted_model if self._wanted_model in mute else ", ".join(mute)
            raise ChatError(f"{name} has no chat template, so it can't chat: whoever runs the service can give it one")
        if self._wanted_model is not None and self._wanted_model not in served:
            raise ChatError(f"{url} does not serve {self._wanted_model}, only {', '.join(served)}")
        self.model = served[self._wanted_model or next(iter(served))]

    def use_model(self, name: str) -> None:
        """Uses that model from now on. Raises ChatError if it is not served, and OpenAIError."""
        before, self._wanted_model = self._wanted_model, name
        try:
            self.choose_model()
        except ChatError:
            self._wanted_model = before
            raise
        if self.model is None:
            raise ChatError(self.login_needed())

    def login_needed(self) -> str:
        """The message where only users are served."""
        return f"{self.account.url} serves its users only: type login; exit or Ctrl-D leaves."

    # --- how it works

    def _write(self, turn: _Turn, begin: Callable[[Conversation, Asking], Pieces], *, seed: int | None = None) -> None:
        """Shows and stores an answer as it is made. turn: the part that exists already."""
        assert self.model is not None
        knobs = self.knobs if seed is None else replace(self.knobs, seed=seed)
        how = thinking.fields(knobs.thinking, self.model)
        asking = Asking(self.account.client, self.model.id, knobs, how, turn.asked.files)
        written = self._shown(lambda: begin(self.conversation(), asking), turn.answer)
        self._last = turn
        if written.text:
            self._last = _Turn(turn.asked, turn.answer + written.text)
            try:
                if turn.answer:
                    self.conversation().went_on(asking.client, turn.asked, self._last.answer)
                else:
                    self.conversation().answered(turn.asked, written.text, turn.instead_of)
            except OpenAIError as error:
                self.screen.say(f"The answer could not be stored: {reason(error, self.account.url)}")
        self._say_end(written)

    def _shown(self, begin: Callable[[], Pieces], before: str) -> _Written:
        text, end, view, first_s, is_stopped = "", None, None, None, False
        failure: OpenAIError | None = None
        try:
            with self.reader.quiet():
                pieces = begin()
                view = self.screen.answer(before)
                with closing(pieces):
                    for piece in stoppable(pieces):
                        if isinstance(piece, Ended):
                            end = piece
                            continue
                        first_s = first_s or time.monotonic()
                        if isinstance(piece, Thought):
                            view.add_thought(piece.text)
                        elif isinstance(piece, Sources):
                            view.add(piece.text)
                        else:
                            text += piece
                            view.add(piece)
        except KeyboardInterrupt:
            is_stopped = True
        except OpenAIError as error:
            failure = error
        seconds = time.monotonic() - first_s if first_s is not None else 0.0
        if view is not None:
            view.close()
        return _Written(text, end, seconds, is_stopped, failure)

    def _ask_again(self, turn: _Turn, question: str) -> None:
        instead_of = turn.asked.text if turn.answer else turn.instead_of

        def begin(conversation: Conversation, asking: Asking) -> Pieces:
            if instead_of is None:
                return conversation.answer(asking, question)
            return conversation.answer_instead(asking, instead_of, question)

        asked = replace(turn.asked, text=question)
        self._write(_Turn(asked, instead_of=instead_of), begin, seed=random.randrange(_SEEDS))

    def _last_turn(self) -> _Turn | None:
        """The last turn of this chat, or of the stored conversation; shows a notice if there is none.

        Raises OpenAIError.
        """
        if self._last is None:
            found = self.conversation().last_turn(self.account.client)
            if found is None:
                self.screen.say("There is no question yet.")
                return None
            self._last = _Turn(*found)
        return self._last

    def _is_ready(self) -> bool:
        """Whether a question can be sent; shows a notice if not."""
        if self.account.is_left:
            self.screen.say(f"Type login to go on as {self.account.user}, or logout to forget this chat.")
            return False
        if self.model is None and not self.find_model():
            if self.screen.is_terminal:
                self.screen.say("/retry asks again.")
            return False
        if not self._is_begun:  # the service was not there before
            self.begin()
        return True

    def _say_end(self, written: _Written) -> None:
        if written.end is not None:
            self.usage = written.end.usage
            if why := wordings.cut(written.end, has_text=bool(written.text)):
                self.screen.say(why)
            self._note_context(written.end.context)
            if self.screen.is_terminal and self.usage is not None:
                self.screen.say(wordings.numbers(self.usage, self.model, written.seconds))
        if written.is_stopped:
            self.screen.say("Stopped. /continue goes on." if written.text else "Stopped. /retry asks again.")
        if written.failure is not None:
            self.has_failed = True
            self.screen.say(self._what_now(written.failure, is_begun=bool(written.text)))

    def _note_context(self, context: Context | None) -> None:
        """Says from where on the model sees the chat, if that has changed."""
        before, self.context = self.context, context
        if context is None or context.left_out_turns == (before.left_out_turns if before is not None else 0):
            return
        if self.screen.is_terminal and (line := self.left_out()):
            self.screen.say(f"── {line} ──")

    def left_out(self) -> str:
        """The line that says from where on the model sees this chat; empty if it sees all."""
        if self.context is None or not self.context.left_out_turns:
            return ""
        try:
            question = self.conversation().question(self.account.client, self.context.left_out_turns)
        except OpenAIError:
            question = None
        return wordings.left_out(self.context.left_out_turns, question)

    def _what_now(self, error: OpenAIError, *, is_begun: bool) -> str:
        """Why an answer has failed, worded as in the service's log, and what to do."""
        code = getattr(error, "code", None)
        if self.account.session is not None and login.has_ended(error):
            self.renew()
            return self.account.forget_ended()
        if self._keeps and isinstance(error, NotFoundError) and code == "not_found":
            self._kept.id = None
            return "This conversation was deleted elsewhere. Your next line begins a new one."
        request_id = getattr(error, "request_id", None)
        known_as = f" (request {request_id})" if request_id and self.screen.is_terminal else ""
        what_to_do = f" {wordings.what_to_do(error, code, is_begun=is_begun)}" if self.screen.is_terminal else ""
        return f"{reason(error, self.account.url)}{known_as}{what_to_do}"

    def _forget_turns(self) -> None:
        self._own = OwnConversation()
        self._kept = KeptConversation(None, self._own, self.knobs.thinking)
        self._last, self.files, self.usage, self.context = None, (), None, None
        self._is_new = False

    def _has_users(self) -> bool:
        try:
            return login.has_users(self.account.client)
        except OpenAIError as error:
            raise chat_error(error, self.account.url) from error
