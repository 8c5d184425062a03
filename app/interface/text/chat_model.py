"""A converted model as the interface sees it: template, tokenizer, context, and end-of-sequence tokens.

Control tokens come from the template or from a raw prompt, never from a message's text: the tokenizer knows them only
under secret names, which only the template's own get. It knows nothing of weights, HTTP or Ray.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

from app.control_tokens import control_tokens
from app.documents.document import frames_end
from app.interface.functions.dialects import grammar_dialects, parsed_dialects
from app.interface.request import errors
from app.interface.text.begun_answer import Begun
from app.interface.text.chat_template import ChatTemplate
from app.interface.text.instructions import is_system
from app.interface.text.known_answers import KnownAnswers
from app.interface.text.message_sizes import MessageSize, TemplateSizes
from app.interface.text.model_thoughts import ModelThinking, ModelThoughts
from app.interface.text.model_tokenizer import ModelTokenizer
from app.interface.thinking.channels import CALL, RETURN
from app.interface.thinking.ends import without_thought
from app.interface.thinking.marks import CHANNELS
from app.interface.thinking.requested import TemplateOptions, ThinkingDefault
from app.interface.wire.answer_forms import ResponseFormat
from app.interface.wire.chat import Message
from app.interface.wire.sampling_defaults import SamplingDefaults
from app.interface.wire.tools import Tool
from app.messages.requests import OnOverflow
from app.model_folder import (
    ChatModelError,
    ModelFolder,
    end_token_ids,
    find_template,
    read_json,
    read_template,
)

_DATE_TOKENS = 32
"""A system prompt counts as a multiple of this: with a date in it, it has not the same length every day."""
_NO_TEMPLATE = (
    "This model has no chat template, so it can't chat: use /v1/completions, or start the service with a template"
    " for it (redoubt serve --chat-template FILE; model.chat_template in the configuration)."
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A rendered and tokenized conversation, which may be longer than the context."""

    token_ids: list[int]
    system_tokens: int
    """The number of first tokens that do not depend on what follows the system messages."""
    shared_tokens: int
    """Those and the files with which the first message begins: a user's other chats may begin alike."""


class ChatModel:
    """Immutable after loading and thread-safe."""

    def __init__(
        self,
        *,
        tokenizer: Mapping[str, Any],
        config: Mapping[str, Any],
        tokenizer_config: Mapping[str, Any] | None = None,
        generation_config: Mapping[str, Any] | None = None,
        template: str | None = None,
        max_context_tokens: int | None = None,
        on_overflow: OnOverflow = "refuse",
        thinking: ThinkingDefault | None = None,
        identity: str = "",
        origin: str = "the model",
    ) -> None:
        """Takes the contents of a model folder's JSON files. Raises ValueError naming what is wrong.

        origin: the template's source, for the log.
        """
        names = tokenizer_config or {}
        control = control_tokens(tokenizer.get("added_tokens") or [], template)
        self.tokenizer = ModelTokenizer(tokenizer, names, control)
        trained_tokens = int(config["max_position_embeddings"])
        self.context_tokens = min(max_context_tokens or trained_tokens, trained_tokens)
        """The maximum of prompt and output tokens together."""
        self._own_context_tokens = self.context_tokens
        self.identity = identity
        """The identity of the model's files (`ModelCard.identity`)."""
        self.on_overflow = on_overflow
        """What happens when the context is full, unless the request says."""
        self.vocab_size = int(config["vocab_size"])
        self.hidden_size: int | None = config.get("hidden_size")
        self.dialects = grammar_dialects(template)
        """The dialects of its calls, for grammars."""
        self.parsed_dialects = parsed_dialects(template)
        """The dialects in which its calls are recognized."""
        self.thoughts = ModelThoughts(
            self.tokenizer, template, str(config.get("model_type", "")), thinking or ThinkingDefault()
        )
        special = self.tokenizer.special
        self._template = ChatTemplate(template, special, control, origin=origin) if template is not None else None
        self.sampling = SamplingDefaults.of(generation_config or {})
        """The sampling defaults."""
        self.eos_token_ids = end_token_ids(tokenizer, config, names, generation_config or {})
        """Tokens that end an answer."""
        if self.thoughts.marks == CHANNELS:  # otherwise the model would answer its own calls
            self.eos_token_ids |= {token for token, name in self.tokenizer.added.items() if name in (CALL, RETURN)}
        self._answers = KnownAnswers({}, self.tokenizer, self.eos_token_ids)
        self._sizes: TemplateSizes | None = None
        if self._template is not None:
            self._sizes = TemplateSizes.measured(
                lambda messages, tools: len(self.chat_prompt(messages, tools, bounded=False)), self._count
            )

    @classmethod
    def load(
        cls,
        folder: ModelFolder,
        *,
        max_context_tokens: int | None = None,
        on_overflow: OnOverflow = "refuse",
        thinking: ThinkingDefault | None = None,
        identity: str = "",
        template: Path | None = None,
    ) -> Self:
        """Opens a converted model. template: a file that replaces its own template.

        Raises ChatModelError naming the file.
        """
        tokenizer_config = read_json(folder / "tokenizer_config.json", optional=True)
        try:
            return cls(
                tokenizer=read_json(folder / "tokenizer.json"),
                config=read_json(folder / "config.json"),
                tokenizer_config=tokenizer_config,
                generation_config=read_json(folder / "generation_config.json", optional=True),
                template=find_template(folder, tokenizer_config) if template is None else read_template(template),
                max_context_tokens=max_context_tokens,
                on_overflow=on_overflow,
                thinking=thinking,
                identity=identity,
                origin=str(template or folder),
            )
        except ChatModelError:
            raise
        except KeyError as error:
            raise ChatModelError(f"{folder}: {error} is missing") from error
        except ValueError as error:
            raise ChatModelError(f"{folder}: {error}") from error
        except Exception as error:  # a file's entry of another type; the tokenizers library raises bare Exception
            raise ChatModelError(f"{folder}: can't be read: {type(error).__name__}: {error}") from error

    @property
    def can_chat(self) -> bool:
        """Whether it has a chat template."""
        return self._template is not None

    @property
    def thinking(self) -> ModelThinking | None:
        """Whether and how it thinks; None: it does not, as far as its template tells."""
        return self.thoughts.described(self._template)

    def within(self, tokens: int | None) -> Self:
        """Returns a copy whose context is as long as the model's, but not longer than `tokens`; itself if it is so."""
        context_tokens = min(tokens or self._own_context_tokens, self._own_context_tokens)
        if context_tokens == self.context_tokens:
            return self
        model = copy(self)
        model.context_tokens = context_tokens
        return model

    def with_known_answers(self, answers: Mapping[str, Sequence[int]]) -> Self:
        """Returns a copy that encodes these earlier answers with the tokens that the model generated.

        answers: maps each text to the model's own tokens. Tokens that do not spell the text are not used.
        """
        model = copy(self)
        model._answers = KnownAnswers(answers, self.tokenizer, self.eos_token_ids)
        return model

    def chat_prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        form: ResponseFormat | None = None,
        *,
        bounded: bool = True,
        options: TemplateOptions | None = None,
    ) -> list[int]:
        """Returns the conversation as tokens, up to where the answer begins, or goes on. Raises ApiError (400).

        bounded: refuse what can't fit the context before it is tokenized.
        """
        text = self._rendered(messages, tools, form, options=options)
        if bounded:
            self._check_length(text, "messages")
        return self._answers.tokens(messages, text, self.tokenizer.encode(text))

    def conversation(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        form: ResponseFormat | None = None,
        *,
        bounded: bool = False,
        options: TemplateOptions | None = None,
    ) -> Conversation:
        """Returns the tokens of `chat_prompt`, and the length of the system prompt.

        bounded: see `chat_prompt`. Raises ApiError (400), also if the system prompt alone can't fit the context.
        """
        leading = list(takewhile(is_system, messages))
        if len(leading) == len(messages):
            token_ids = self.chat_prompt(messages, tools, form, options=options)
            return Conversation(token_ids, len(token_ids), len(token_ids))
        text = self._rendered(messages, tools, form, marks_start=True, options=options)
        assert self._template is not None
        start = text.find(self._template.start_mark)
        if start < 0:  # the template does not show the first message's text, or changes it
            token_ids = self.chat_prompt(messages, tools, form, bounded=bounded, options=options)
            system_tokens = self._probed_system_tokens(leading, tools, form, options)
            return Conversation(token_ids, system_tokens, system_tokens)
        self._check_length(text if bounded else text[:start], "messages")
        text = text.replace(self._template.start_mark, "")
        encoding = self.tokenizer.encode(text)
        system_tokens, shared_tokens = (
            next((i for i, (_, end) in enumerate(encoding.offsets) if end > place), len(encoding.ids))
            for place in (start, frames_end(text, start))
        )
        token_ids = self._answers.tokens(messages, text, encoding)
        return Conversation(token_ids, system_tokens, shared_tokens)

    def message_sizes(self, messages: Sequence[Message]) -> list[MessageSize]:
        """Returns about how many tokens of a prompt each message is, whatever comes before and after it.

        Raises ApiError (400) if it has no chat template.
        """
        if self._template is None or self._sizes is None:
            raise errors.invalid(_NO_TEMPLATE, "model")
        split = [(message, *self._template.thought_and_text(message)) for message in messages]
        return self._sizes.of(split, self._count)

    def question_tokens(self, text: str) -> int:
        """Returns about how many tokens of a prompt a user's message is. Raises as `message_sizes` does."""
        return self.message_sizes([Message(role="user", content=text)])[0].later

    def system_size(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        form: ResponseFormat | None = None,
        options: TemplateOptions | None = None,
    ) -> int:
        """Returns about how many tokens a prompt with these leading system messages has besides its other messages.

        Raises ApiError (400).
        """
        question = Message(role="user", content="a")
        token_ids = self.chat_prompt([*messages, question], tools, form, options=_ended(options))
        rest = len(token_ids) - self.message_sizes([question])[0].later
        return -(-rest // _DATE_TOKENS) * _DATE_TOKENS

    def _count(self, texts: Sequence[str]) -> list[int]:
        """Returns the tokens of each text; of one that is too long for the context, the least that it can have."""
        counts = []
        for text in texts:
            tokens = len(text.encode()) // self.tokenizer.bytes.longest
            counts.append(self.tokenizer.count(text) if text and tokens <= self.context_tokens else tokens)
        return counts

    def _probed_system_tokens(
        self,
        leading: Sequence[Message],
        tools: Sequence[Tool],
        form: ResponseFormat | None,
        options: TemplateOptions | None = None,
    ) -> int:
        """Returns the number of tokens shared by two conversations that differ after their system messages."""
        first, second = (
            self.chat_prompt([*leading, Message(role="user", content=text)], tools, form, options=_ended(options))
            for text in ("a", "b")
        )
        return next(i for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        form: ResponseFormat | None,
        *,
        marks_start: bool = False,
        options: TemplateOptions | None = None,
    ) -> str:
        """Renders the conversation, with control tokens under their secret names. Raises ApiError (400).

        marks_start: put the template's start mark where the first message after the system messages begins.
        """
        if self._template is None:
            raise errors.invalid(_NO_TEMPLATE, "model")
        text = self._template.render(messages, tools, form, marks_start=marks_start, options=options)
        if options is not None and options.budget == 0 and not options.continues:
            text = without_thought(text, self.thoughts.marks)
        # The template's control tokens are whole, users' are broken by marks: only the former are renamed.
        return self.tokenizer.aliases.in_text(text).replace(self._template.mark, "")

    def raw_prompt(
        self, text: str, field: str = "prompt", *, bounded: bool = True, starts_text: bool = True
    ) -> list[int]:
        """Tokenizes a raw prompt; names of control tokens in it become those tokens.

        starts_text: whether it begins with BOS, if the model uses BOS. bounded: see `chat_prompt`.
        """
        text = self.tokenizer.aliases.in_text(text)
        if bounded:
            self._check_length(text, field)
        token_ids = self.tokenizer.encode(text).ids
        return self.tokenizer.with_prefix(token_ids) if starts_text else token_ids

    def check_vocabulary(self, token_ids: Iterable[int], field: str) -> None:
        """Raises ApiError (400) for a token that the model does not have."""
        highest = max(token_ids, default=0)
        if highest >= self.vocab_size:
            message = f"'{field}': token {highest} is not in the vocabulary of {self.vocab_size} tokens."
            raise errors.invalid(message, field, "invalid_value")

    def begun(self, messages: Sequence[Message]) -> Begun:
        """Returns what the last message has of an answer that goes on. Raises ApiError (400)."""
        if self._template is None:
            raise errors.invalid(_NO_TEMPLATE, "model")
        return self._template.begun(len(messages) - 1, messages[-1])

    def _check_length(self, text: str, field: str) -> None:
        """Refuses a text that can't fit the context, without tokenizing it. Raises ApiError (400)."""
        least_tokens = self.tokenizer.least_tokens(text)
        if least_tokens > self.context_tokens:
            raise errors.context_length_exceeded(least_tokens, 1, self.context_tokens, field, at_least=True)


def _ended(options: TemplateOptions | None) -> TemplateOptions | None:
    """Returns the options of a conversation whose last message is not one that goes on."""
    return None if options is None else replace(options, continues=False)
