"""Renders messages with a model's own chat template.

The template comes with the model's files and runs within limits (`rendering`). Users' text can't form a control token:
wherever a user's string contains one, or could become part of one, an unguessable mark is inserted. `ChatModel` removes
the marks after it has renamed the template's own control tokens. It knows nothing of token ids.
"""

import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.interface.functions.dialects import written_dialect
from app.interface.request import errors
from app.interface.text.begun_answer import Begun, WrittenThought, continued, written_thought
from app.interface.text.earlier_calls import call_value, short_id, with_calls_as_text, with_one_call_each
from app.interface.text.instructions import (
    definitions,
    is_system,
    with_format_instructions,
    with_shown_system,
    with_tool_instructions,
)
from app.interface.text.rendering import REMEDY, Rendering, TemplateBoundsError, TemplateRefusedError
from app.interface.text.template_abilities import CallForm, abilities_of
from app.interface.text.turns import alternating, joined
from app.interface.thinking.channels import CHANNEL, ChannelSplitter
from app.interface.thinking.marks import CHANNELS, is_known, marks_of
from app.interface.thinking.requested import COMMON_EFFORTS, EFFORTS, SWITCHES, TemplateOptions, thinking_variables
from app.interface.wire.answer_forms import ResponseFormat
from app.interface.wire.chat import Message, TextPart
from app.interface.wire.tools import Tool

logger = logging.getLogger("ray.serve")
_PROBE = "probe"


class ChatTemplate:
    """A compiled template and the control tokens that users must not be able to write."""

    def __init__(
        self, source: str, variables: Mapping[str, str], control_tokens: Iterable[str], *, origin: str = "the model"
    ) -> None:
        """Raises ValueError if the template is invalid or exceeds its limits.

        variables: `bos_token` and the like. origin: the template's source, for the log.
        """
        self._source = source
        self._variables = dict(variables)
        self._origin = origin
        try:
            self._template = Rendering(source)
        except TemplateRefusedError as error:
            raise ValueError(f"the chat template is not valid, {error}; {REMEDY}") from error
        self.mark = f"\ue000{secrets.token_hex(8)}\ue001"
        """Inserted where a user's string could otherwise be read as a control token."""
        self.start_mark = f"\ue000{secrets.token_hex(8)}\ue002"
        """Inserted on request where the first message after the system messages begins."""
        tokens = sorted((token for token in control_tokens if len(token) > 1), key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        self._prefixes = {token[:length] for token in tokens for length in range(1, len(token))}
        self._suffixes = {token[length:] for token in tokens for length in range(1, len(token))}
        self._longest = max(map(len, tokens), default=0)
        self._no_tools: list[Any] | None = None
        self._wants_parts = False
        if not self._shows_users(_PROBE):
            self._wants_parts = self._shows_users([{"type": "text", "text": _PROBE}])
            if not self._wants_parts:  # the template works only for conversations with tools
                self._no_tools = []
        self._efforts = self._detect_efforts()
        self.has_switch, self.is_off_by_default = self._detect_switch()
        """Whether it can be told not to let the model think; whether it does so unless it is told otherwise."""
        marks = marks_of(source, ())
        self._thought_marks = marks if is_known(marks, source) else None
        self._abilities = abilities_of(self._render, self._written)
        self._written_thought = self._detect_written_thought()
        tokens = tokens if self._abilities.tools else []
        self._dialect = written_dialect(source if self._abilities.tools else "", tokens)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        form: ResponseFormat | None = None,
        *,
        marks_start: bool = False,
        options: TemplateOptions | None = None,
    ) -> str:
        """Renders the prompt, up to where the answer begins, or goes on, with marks in it.

        marks_start: insert `start_mark`. It is missing if the first message begins with white space or has no text, or
        if the template does not show it. What the template would refuse or omit is written in another way (`Abilities`,
        `turns`). Raises ApiError (400) with the template's message, or if it exceeds its limits.
        """
        for i, message in enumerate(messages):
            _check(i, message)
        begun = None
        if options is not None and options.continues:
            begun, messages = self.begun(len(messages) - 1, messages[-1]), messages[:-1]
            messages = messages or [Message(role="user", content="")]
            if self.has_switch and (begun.thought or begun.text):
                options = replace(options, thinks=bool(begun.thought))
        abilities, chosen = self._abilities, self._chosen(options)
        opens_answer = options is None or options.opens_answer
        messages = self._with_start_mark(messages) if marks_start else messages
        messages = with_format_instructions(messages, form)
        if tools and not abilities.tools:
            messages = with_tool_instructions(messages, tools)
        messages = with_shown_system(messages, abilities)
        as_text = self._has_calls_as_text(messages, tools)
        if not as_text and not abilities.parallel:
            messages = with_one_call_each(messages)
        values = [self._value(message, self._dialect.form if as_text else abilities.calls) for message in messages]
        marked = [self._marked(value) | {"role": value["role"]} for value in values]
        if as_text:
            shows_results = abilities.tools and abilities.results
            marked = with_calls_as_text(marked, self._dialect, self._written, shows_results=shows_results)
        marked_tools = self._marked(definitions(tools)) if abilities.tools and tools else None
        reasons = list[str]()
        for turns in (marked, joined(marked), alternating(marked, self._written)):
            try:
                text = self._render(turns, marked_tools, chosen, opens_answer=opens_answer)
                return text if begun is None else self._continued(text, begun)
            except TemplateRefusedError as error:
                reasons.append(str(error).replace(self.mark, ""))
            except TemplateBoundsError as error:
                logger.error("%s: a request's messages: %s", self._origin, error)
                reason = "This model's chat template can't write these messages: it exceeds its bounds."
                raise errors.invalid(reason, "messages") from error
        raise errors.invalid(f"The model's chat template refuses these messages: {reasons[0]}", "messages")

    def _has_calls_as_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
        """Whether calls and results are written as text, because the template does not support them."""
        abilities = self._abilities
        if abilities.calls != "none":
            return bool(tools) and not abilities.tools
        return any(one.tool_calls or (one.role == "tool" and not abilities.results) for one in messages)

    def begun(self, index: int, message: Message) -> Begun:
        """Returns what an answer that goes on has so far. index: its place. Raises ApiError (400)."""
        thought, text = self.thought_and_text(message)
        marks = self._thought_marks
        if not thought and marks not in (None, CHANNELS) and text.lstrip().startswith(marks.opening):
            thought, text = text.lstrip().removeprefix(marks.opening).lstrip(), ""
        if thought and marks is None:
            if not text:
                field = f"messages[{index}].reasoning_content"
                raise errors.invalid(f"'{field}': this model's chat template has no thoughts.", field, "invalid_value")
            thought = ""
        return Begun(thought, text)

    def _continued(self, prompt: str, begun: Begun) -> str:
        marked = Begun(self._marked_text(begun.thought), self._marked_text(begun.text))
        return continued(prompt, marked, self._thought_marks, self._written_thought)

    def _detect_written_thought(self) -> WrittenThought:
        """Returns how the template writes an answer with a thought, by default as models of its kind do."""
        marks, thought, text = self._thought_marks, f"{_PROBE}_thought", f"{_PROBE}_text"
        if marks is None or marks == CHANNELS:
            return WrittenThought("", "")
        names = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), thought)
        question = {"role": "user", "content": self._written(_PROBE)}
        try:
            shown = self._render([question, {"role": "assistant", "content": self._written(text), **names}])
        except TemplateRefusedError:
            shown = ""
        return written_thought(shown, thought, text, marks)

    def _render(
        self,
        messages: list[Any],
        tools: list[Any] | None = None,
        chosen: Mapping[str, Any] | None = None,
        *,
        opens_answer: bool = True,
    ) -> str:
        """chosen: the request's variables, which can't override the service's own."""
        own = {
            "messages": messages,
            "tools": self._no_tools if tools is None else tools,
            "documents": None,
            "add_generation_prompt": opens_answer,
        }
        return self._template.render({**(chosen or {}), **own, **self._variables})

    def _chosen(self, options: TemplateOptions | None) -> dict[str, Any]:
        if options is None:
            return {}
        return {**thinking_variables(options, self._efforts), **self._marked(dict(options.variables))}

    def _shows_users(self, content: object) -> bool:
        try:
            return _PROBE in self._render([{"role": "user", "content": content}])
        except TemplateRefusedError:
            return False

    def _written(self, text: str) -> Any:
        """Returns the text in the form in which the template expects content."""
        return [{"type": "text", "text": text}] if self._wants_parts else text

    def _detect_switch(self) -> tuple[bool, bool]:
        efforts = self._efforts if "none" in self._efforts else ()
        if not efforts and not re.search(rf"\b({'|'.join(SWITCHES)})\b", self._source):
            return False, False
        question = [{"role": "user", "content": self._written(_PROBE)}]

        def asked(thinks: bool | None) -> str:
            variables = thinking_variables(TemplateOptions(thinks=thinks), efforts)
            kept = (*SWITCHES, *(["reasoning_effort"] if efforts else []))
            return self._render(question, None, {name: value for name, value in variables.items() if name in kept})

        try:
            on, off = asked(True), asked(False)
            return on != off, on != off and asked(None) == off
        except TemplateRefusedError:
            return False, False

    def _detect_efforts(self) -> tuple[str, ...]:
        """Returns the supported values of `reasoning_effort`, lowest first; empty if the template ignores it."""
        if not re.search(r"\breasoning_effort\b", self._source):
            return ()

        def takes(effort: str) -> bool:
            try:
                self._render([{"role": "user", "content": self._written(_PROBE)}], None, {"reasoning_effort": effort})
            except TemplateRefusedError:
                return False
            return True

        named = set(re.findall(r"""["'](\w+)["']""", self._source)) | set(COMMON_EFFORTS)
        return tuple(effort for effort in EFFORTS if effort in named and takes(effort))

    def _value(self, message: Message, form: CallForm) -> dict[str, Any]:
        """Returns the message as templates expect it. form: of its calls."""
        texts = message.texts
        text = "\n".join(texts)
        value: dict[str, Any] = {"role": self._role(message.role)}
        if message.role == "assistant":
            thought, text = self._thought_and_answer(message.reasoning_content, text)
            if thought and text and message.tool_calls and self._thought_marks == CHANNELS:
                thought, text = f"{thought}\n\n{text}", ""  # gpt-oss's template refuses both
            if thought:  # each template has its own name for it
                value["reasoning_content"] = value["reasoning"] = value["thinking"] = thought
        value["content"] = self._written(text)
        takes_parts = message.role != "assistant" and value["role"] in self._abilities.parts
        if len(texts) > 1 and takes_parts:
            value["content"] = [{"type": "text", "text": one} for one in texts]
        if message.name is not None:
            value["name"] = message.name
        if message.tool_call_id is not None:
            value["tool_call_id"] = self._call_id(message.tool_call_id)
        if message.tool_calls:
            value["tool_calls"] = [call_value(call, form, self._call_id(call.id)) for call in message.tool_calls]
        return value

    def _call_id(self, call_id: str) -> str:
        return call_id if self._abilities.any_id else short_id(call_id)

    def thought_and_text(self, message: Message) -> tuple[str, str]:
        """Returns a message's thought and the rest of its text, both of which may be empty."""
        text, thought = "\n".join(message.texts), None
        if message.role == "assistant":
            thought, text = self._thought_and_answer(message.reasoning_content, text)
        return thought or "", text

    def _thought_and_answer(self, thought: str | None, text: str) -> tuple[str | None, str]:
        """Splits an earlier answer. Some clients return the thought and the answer as one text."""
        marks, start = self._thought_marks, text.lstrip()
        if thought is None and marks == CHANNELS and start.startswith((marks.opening, CHANNEL)):
            splitter = ChannelSplitter(marks_are_tokens=False)
            (before, after), (more, rest) = splitter.feed(start), splitter.finish()
            return before + more or None, after + rest
        if thought is not None or marks is None or not start.startswith(marks.opening) or marks.closing not in start:
            return thought, text
        before, _, after = start.removeprefix(marks.opening).partition(marks.closing)
        return before.strip(), after.lstrip()

    def _role(self, role: str) -> str:
        """Returns the template's name of the role: most do not know "developer", OpenAI's newer name of "system"."""
        is_known = "developer" in self._source and self._abilities.developer
        return "system" if role == "developer" and not is_known else role

    def _with_start_mark(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Inserts the start mark, unless white space comes first, which templates may strip."""
        place = next((i for i, message in enumerate(messages) if not is_system(message)), len(messages))
        first = messages[place] if place < len(messages) else None
        if first is None or first.role == "assistant" or not first.content:
            return messages
        texts = first.texts
        if not texts[0][:1].strip():
            return messages
        texts[0] = f"{self.start_mark}{texts[0]}"
        content: Any = texts[0]
        if isinstance(first.content, list):
            content = [TextPart(type="text", text=text) for text in texts]
        return [*messages[:place], first.model_copy(update={"content": content}), *messages[place + 1 :]]

    def _marked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._marked_text(value)
        if isinstance(value, list):
            return [self._marked(item) for item in value]
        if isinstance(value, dict):
            return {self._marked(key): self._marked(item) for key, item in value.items()}
        return value

    def _marked_text(self, text: str) -> str:
        """Inserts marks into control tokens in the text, and at its ends where the template could complete one."""
        text = self._whole.sub(lambda match: f"{match[0][0]}{self.mark}{match[0][1:]}", text)
        core = text.strip()  # many templates strip
        start = len(text) - len(text.lstrip())
        end = start + len(core)
        lengths = range(1, min(len(core), self._longest) + 1)
        if any(core[-length:] in self._prefixes for length in lengths):
            text = f"{text[:end]}{self.mark}{text[end:]}"
        if any(core[:length] in self._suffixes for length in lengths):
            text = f"{text[:start]}{self.mark}{text[start:]}"
        return text


def _check(index: int, message: Message) -> None:
    """Raises ApiError (400) naming the message's place in the request."""
    where = f"messages[{index}]"
    is_empty = message.content is None and not message.tool_calls and message.reasoning_content is None
    if is_empty and message.role != "assistant":  # who may have said nothing
        raise errors.invalid(f"'{where}.content' is missing.", f"{where}.content", "missing_required_parameter")
