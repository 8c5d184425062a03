"""A converted model as the interface sees it: template, tokenizer, context, and end-of-sequence tokens.

Control tokens come from the template or from a raw prompt, never from a message's text: the tokenizer knows them only
under secret names, which only the template's own get. It knows nothing of weights, HTTP or Ray.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, Self

from tokenizers import Encoding, Tokenizer

from app.control_tokens import Aliases, control_tokens
from app.documents.document import frames_end
from app.interface.functions.dialects import SPECIAL_TOKENS, grammar_dialects, parsed_dialects
from app.interface.request import errors
from app.interface.text.begun_answer import Begun
from app.interface.text.chat_template import ChatTemplate
from app.interface.text.detokenizer import Detokenizer, TokenBytes
from app.interface.text.instructions import is_system
from app.interface.text.message_sizes import MessageSize, TemplateSizes
from app.interface.text.thought_budget import ThoughtBudgets
from app.interface.thinking.channels import CALL, RETURN, TOKEN_SIGN
from app.interface.thinking.ends import Calls, without_thought
from app.interface.thinking.marks import CHANNELS, Thought, is_known, marks_of, thought_after
from app.interface.thinking.requested import TemplateOptions, ThinkingDefault
from app.interface.wire.answer_forms import ResponseFormat
from app.interface.wire.chat import Message, Tool
from app.interface.wire.sampling_defaults import SamplingDefaults
from app.messages.model_card import ThinkingMode
from app.messages.requests import OnOverflow
from app.messages.thoughts import ThoughtBudget
from app.model_folder import (
    ChatModelError,
    ModelFolder,
    end_token_ids,
    find_template,
    read_json,
    read_template,
    token_text,
)

_PROMPT_END_TOKENS = 16
"""The number of a prompt's last tokens that show whether it ends within a thought."""
_DATE_TOKENS = 32
"""A system prompt counts as a multiple of this: with a date in it, it has not the same length every day."""
_NO_TEMPLATE = (
    "This model has no chat template, so it can't chat: use /v1/completions, or start the service with a template"
    " for it (redoubt serve --chat-template FILE; model.chat_template in the configuration)."
)
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A rendered and tokenized conversation, which may be longer than the context."""

    token_ids: list[int]
    system_tokens: int
    """The number of first tokens that do not depend on what follows the system messages."""
    shared_tokens: int
    """Those and the files with which the first message begins: a user's other chats may begin alike."""


@dataclass(frozen=True, slots=True)
class ModelThinking:
    """How a model thinks."""

    has_switch: bool
    """Whether its template can be told not to let it think."""
    short_tokens: int
    """The budget of "short"."""
    default: ThinkingMode
    """How much it thinks if a request does not say."""


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
        self.tokens = TokenBytes.from_json(tokenizer)
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
        special = {name: text for name in _SPECIAL_NAMES if (text := token_text(names.get(name)))}
        added = tokenizer.get("added_tokens") or []
        control = control_tokens(added, template)
        self.added_tokens: Mapping[int, str] = {token["id"]: token["content"] for token in added}
        """Added tokens by id, special or not: a text contains them only as a whole, or not at all."""
        self._marks = marks_of(template, set(self.added_tokens.values()))
        self._knows_marks = is_known(self._marks, template)
        self.dialects = grammar_dialects(template)
        """The dialects of its calls, for grammars."""
        self.parsed_dialects = parsed_dialects(template)
        """The dialects in which its calls are recognized."""
        special_names = set(self.tokens.special.values())
        self._marks_are_tokens = self._marks == CHANNELS and set(CHANNELS.special_tokens) <= special_names
        sign = TOKEN_SIGN if self._marks_are_tokens else ""
        self._thought_tokens = self.tokens.showing(self._marks.special_tokens, sign)
        self._call_tokens = self.tokens.showing(SPECIAL_TOKENS)
        self._thought_and_call_tokens = self._thought_tokens.showing(SPECIAL_TOKENS)
        self.thinking_default = thinking or ThinkingDefault()
        """The operator's, for requests that do not say how much to think."""
        self._budgets = ThoughtBudgets(
            self._marks,
            self.tokens.showing(self._marks.special_tokens),
            lambda text: self._encode(self._aliases.in_text(text)).ids if text else [],
            str(config.get("model_type", "")),
        )
        self._aliases = Aliases(control)
        self._tokenizer = Tokenizer.from_str(json.dumps(self._aliases.in_tokenizer(tokenizer)))
        self._prefix = self._prompt_prefix(names, special)
        self._template = ChatTemplate(template, special, control, origin=origin) if template is not None else None
        self.sampling = SamplingDefaults.of(generation_config or {})
        """The sampling defaults."""
        self.eos_token_ids = end_token_ids(tokenizer, config, names, generation_config or {})
        if self._marks == CHANNELS:  # otherwise the model would answer its own calls
            self.eos_token_ids |= {token for token, name in self.added_tokens.items() if name in (CALL, RETURN)}
        """Tokens that end an answer."""
        self._answers: Mapping[str, Sequence[int]] = {}
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
        template = self._template
        if template is None or not (template.has_switch or self._knows_marks):
            return None
        default = self.thinking_default
        mode: ThinkingMode = default.mode or ("off" if template.is_off_by_default else "full")
        return ModelThinking(template.has_switch, default.short_tokens, mode)

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

        answers: maps each text to the model's own tokens. A tokenizer may choose others, and then the cached KV pages
        of what follows would not be found. Tokens that do not spell the text are not used.
        """
        model = copy(self)
        model._answers = {text: token_ids for text, token_ids in answers.items() if text}
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
        encoding = self._encode(text)
        return self._with_answers(messages, text, encoding) or encoding.ids

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
        encoding = self._encode(text)
        system_tokens, shared_tokens = (
            next((i for i, (_, end) in enumerate(encoding.offsets) if end > place), len(encoding.ids))
            for place in (start, frames_end(text, start))
        )
        token_ids = self._with_answers(messages, text, encoding) or encoding.ids
        return Conversation(token_ids, system_tokens, shared_tokens)

    def message_sizes(self, messages: Sequence[Message]) -> list[MessageSize]:
        """Returns about how many tokens of a prompt each message is, whatever comes before and after it.

        Raises ApiError (400) if it has no chat template.
        """
        if self._template is None or self._sizes is None:
            raise errors.invalid(_NO_TEMPLATE, "model")
        split = [(message, *self._template.thought_and_text(message)) for message in messages]
        return self._sizes.of(split, self._count)

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
            tokens = len(text.encode()) // self.tokens.longest
            if text and tokens <= self.context_tokens:
                # One by one: a batch would take all cores, also the workers'.
                (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
                tokens = len(encoding)
            counts.append(tokens)
        return counts

    def _with_answers(self, messages: Sequence[Message], text: str, encoding: Encoding) -> list[int] | None:
        """Returns the tokens of `text`, with the model's own for known answers; None if no answer is known.

        encoding: of `text`. An answer whose text does not begin and end at a token boundary is not replaced.
        """
        if not self._answers:
            return None
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
            own = [token for token in known if token not in self.eos_token_ids]
            if first is not None and end is not None and first >= done and self.text(own) == content:
                token_ids += encoding.ids[done:first] + own
                done = end
        return token_ids + encoding.ids[done:]

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
            text = without_thought(text, self._marks)
        # The template's control tokens are whole, users' are broken by marks: only the former are renamed.
        return self._aliases.in_text(text).replace(self._template.mark, "")

    def raw_prompt(
        self, text: str, field: str = "prompt", *, bounded: bool = True, starts_text: bool = True
    ) -> list[int]:
        """Tokenizes a raw prompt; names of control tokens in it become those tokens.

        starts_text: whether it begins with BOS, if the model uses BOS. bounded: see `chat_prompt`.
        """
        text = self._aliases.in_text(text)
        if bounded:
            self._check_length(text, field)
        token_ids = self._encode(text).ids
        prefix = self._prefix if starts_text else []
        return token_ids if token_ids[: len(prefix)] == prefix else [*prefix, *token_ids]

    def token_names(self, token_ids: Iterable[int]) -> list[str]:
        """Returns the tokens as the vocabulary writes them; an unknown one is empty."""
        names = (self._tokenizer.id_to_token(token) or "" for token in token_ids)
        return [self._aliases.real_name(name) for name in names]

    def text(self, token_ids: Sequence[int]) -> str:
        """Returns the tokens' text, special tokens by name."""
        text = b"".join(map(self.tokens.spelled, token_ids)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.tokens.has_prefix_space else text

    def check_vocabulary(self, token_ids: Iterable[int], field: str) -> None:
        """Raises ApiError (400) for a token that the model does not have."""
        highest = max(token_ids, default=0)
        if highest >= self.vocab_size:
            message = f"'{field}': token {highest} is not in the vocabulary of {self.vocab_size} tokens."
            raise errors.invalid(message, field, "invalid_value")

    def thought_after(self, prompt: Sequence[int]) -> Thought:
        """Returns how an answer to this chat prompt may begin with a thought."""
        thought = thought_after(self._marks, self.text(prompt[-_PROMPT_END_TOKENS:]), is_known=self._knows_marks)
        return replace(thought, marks_are_tokens=self._marks_are_tokens)

    def begun(self, messages: Sequence[Message]) -> Begun:
        """Returns what the last message has of an answer that goes on. Raises ApiError (400)."""
        if self._template is None:
            raise errors.invalid(_NO_TEMPLATE, "model")
        return self._template.begun(len(messages) - 1, messages[-1])

    def thought_within(self, prompt: Sequence[int], begun: Begun) -> Thought | None:
        """Returns how an output that goes on with an answer may think; None: not any more."""
        if not (begun.thought or begun.text):
            return self.thought_after(prompt)
        part: Literal["thought", "answer"] = "answer" if begun.text else "thought"
        if part == "answer" and self._marks != CHANNELS:
            return None
        return Thought(self._marks, part == "thought", True, self._marks_are_tokens, part)

    def thought_budget(self, thought: Thought, tokens: int, calls: Calls) -> ThoughtBudget:
        """Returns the budget of an output's thoughts, for the engine."""
        return self._budgets.budget(thought, tokens, calls)

    def detokenizer(self, *, starts_text: bool, shows_calls: bool = False, shows_thoughts: bool = False) -> Detokenizer:
        """Returns a new detokenizer for one output.

        shows_calls, shows_thoughts: whether special tokens that mark function calls, and thoughts, are text.
        """
        plain = (self.tokens, self._call_tokens)
        thinking = (self._thought_tokens, self._thought_and_call_tokens)
        return Detokenizer((thinking if shows_thoughts else plain)[shows_calls], starts_text=starts_text)

    def _check_length(self, text: str, field: str) -> None:
        """Refuses a text that can't fit the context, without tokenizing it. Raises ApiError (400)."""
        least_tokens = len(text.encode()) // max(self.tokens.longest, self._aliases.longest_bytes)
        if least_tokens > self.context_tokens:
            raise errors.context_length_exceeded(least_tokens, 1, self.context_tokens, field, at_least=True)

    def _encode(self, text: str) -> Encoding:
        # `encode` would hold the GIL all the time, seconds for a megabyte (tokenizers 0.23).
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return encoding

    def _prompt_prefix(self, config: Mapping[str, Any], special: Mapping[str, str]) -> list[int]:
        """Returns the prefix of raw prompts: BOS, if the tokenizer's configuration or post-processor says so."""
        if config.get("add_bos_token") is False:
            return []
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(1, len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return list(full[:start])
        if config.get("add_bos_token") is True and "bos_token" in special:
            bos = self._tokenizer.token_to_id(self._aliases.name(special["bos_token"]))
            return [] if bos is None else [bos]
        return []


def _ended(options: TemplateOptions | None) -> TemplateOptions | None:
    """Returns the options of a conversation whose last message is not one that goes on."""
    return None if options is None else replace(options, continues=False)
