"""Plans a request of `/v1/messages` by the equivalent chat request.

Errors name the fields of the client's own request, not those of the chat request.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from app.documents.document import framed
from app.interface.generate.planning.chat import plan_as_chat, template_options
from app.interface.generate.planning.job import Job
from app.interface.generate.planning.limits import Limits
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError
from app.interface.text.begun_answer import ending_options
from app.interface.text.chat_model import ChatModel
from app.interface.thinking.requested import NO_BUDGET
from app.interface.thinking.signatures import thought_in
from app.interface.wire.attached import UNNAMED
from app.interface.wire.chat import ChatCompletionRequest, FunctionCall, Message, Part, TextPart, ToolCall
from app.interface.wire.fields import MAX_MESSAGES
from app.interface.wire.message_blocks import (
    DocumentBlock,
    InputTurn,
    PlainText,
    ResultBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from app.interface.wire.message_tools import AnyChoice, ClientTool, MessagesTool, NoChoice, ToolChoiceByName
from app.interface.wire.messages import (
    CountTokensRequest,
    MessagesRequest,
    ThinkingAdaptive,
    ThinkingDisabled,
    ThinkingEnabled,
)
from app.interface.wire.tools import FunctionDefinition, Tool

_FIELDS: Final = {
    "enable_thinking": "thinking",
    "parallel_tool_calls": "tool_choice",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "stop": "stop_sequences",
    "thinking_budget": "thinking.budget_tokens",
}
"""Maps a chat request's fields to those of `/v1/messages`."""
_BILLING: Final = "x-anthropic-billing-header:"
"""Begins a block that Claude Code puts before its system prompt, for Anthropic's accounting. It has a number that
changes with the task, in some versions with each request, so no prompt would begin as the one before."""


def plan_message(model: ChatModel, request: MessagesRequest, limits: Limits, caller: Caller, request_id: str) -> Job:
    """Renders and tokenizes once; slow for a long conversation. Raises ApiError (400)."""
    chat = chat_request(
        request,
        max_tokens=request.max_tokens,
        stop=request.stop_sequences or None,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        truncation=request.truncation,
        on_overflow=request.on_overflow,
    )
    return plan_as_chat(model, chat, limits, caller, request_id, lambda name: _field(name, request))


def prompt_length(model: ChatModel, request: CountTokensRequest) -> int:
    """Returns the length of the prompt that the request makes, which may exceed the context. Raises ApiError (400)."""
    chat = chat_request(request)
    tools = () if chat.tool_choice == "none" else chat.tools or ()
    try:
        options = template_options(chat, model.thoughts.default)
        options = ending_options(options, chat.messages, continues=chat.continue_final_message, opens_answer=None)
        return len(model.chat_prompt(chat.messages, tools, chat.response_format, bounded=False, options=options))
    except ApiError as error:
        raise error.renamed(lambda name: _field(name, request)) from None


def chat_request(request: CountTokensRequest, **options: Any) -> ChatCompletionRequest:
    """Returns the equivalent chat request. options: its fields that do not concern the prompt.

    Raises ApiError (400).
    """
    tools = [_function(tool) for _, tool in _offered(request.tools)]
    messages = [*_system(request), *_messages(request.messages)]
    if len(messages) > MAX_MESSAGES:  # a turn may have many results
        raise errors.invalid(f"'messages': they make more than {MAX_MESSAGES}.", "messages", "invalid_value")
    choice = request.tool_choice
    is_single = choice is not None and choice.disable_parallel_tool_use
    return ChatCompletionRequest(
        model=request.model,
        messages=messages,
        tools=tools or None,
        tool_choice=_tool_choice(request, tools),
        parallel_tool_calls=False if is_single and tools else None,
        response_format=_response_format(request),
        continue_final_message=_is_begun(messages[-1]) or None,
        chat_template_kwargs=request.chat_template_kwargs,
        **_thinking(request),
        **options,
    )


def _field(name: str, request: CountTokensRequest) -> str:
    """Returns the client's name of a chat request's field."""
    found = re.fullmatch(r"tools\[(\d+)\]\.function\.parameters", name)
    if found is not None:
        place, _ = _offered(request.tools)[int(found[1])]
        return f"tools[{place}].input_schema"
    name = _FIELDS.get(name, name)
    is_older = request.output_config is None or request.output_config.format is None
    return name.replace("output_config.format", "output_format") if is_older else name


def _is_begun(last: Message) -> bool:
    """Whether the conversation ends with a text of the assistant, with which the answer goes on."""
    return last.role == "assistant" and not last.tool_calls and bool(last.content)


def _offered(tools: Sequence[MessagesTool] | None) -> list[tuple[int, ClientTool]]:
    """Returns the tools for the model, each with its place in the request."""
    return [(place, tool) for place, tool in enumerate(tools or ()) if isinstance(tool, ClientTool)]


def _function(tool: ClientTool) -> Tool:
    """Returns the function that the model sees."""
    examples = "\n".join(orjson.dumps(example).decode() for example in tool.input_examples or ())
    shown = f"Examples of its input:\n{examples}" if examples else None
    function = FunctionDefinition(
        name=tool.name,
        description="\n\n".join(filter(None, [tool.description, shown])) or None,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def _tool_choice(request: CountTokensRequest, tools: Sequence[Tool]) -> Any:
    match request.tool_choice:
        case ToolChoiceByName(name=name):
            if all(tool.function.name != name for tool in tools):
                raise errors.invalid(f"'tool_choice': no such tool in 'tools': {name}.", "tool_choice", "invalid_value")
            return {"type": "function", "function": {"name": name}}
        case AnyChoice():
            if not tools:
                message = "'tool_choice' is \"any\", but 'tools' has none that the model could call."
                raise errors.invalid(message, "tool_choice", "invalid_value")
            return "required"
        case NoChoice():
            return "none"
        case _:
            return None


def _response_format(request: CountTokensRequest) -> Any:
    form = request.format
    if form is None:
        return None
    if request.output_format is not None and form is not request.output_format:
        message = "'output_format' and 'output_config.format' contradict each other."
        raise errors.invalid(message, "output_format", "invalid_value")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema_, "strict": True}}


def _thinking(request: CountTokensRequest) -> dict[str, Any]:
    """Returns the chat request's fields of how much to think."""
    effort = None if request.output_config is None else request.output_config.effort
    match request.thinking:
        case ThinkingEnabled(budget_tokens=tokens):
            return {"reasoning_effort": effort, "enable_thinking": True, "thinking_budget": tokens}
        case ThinkingAdaptive():
            return {"reasoning_effort": effort, "enable_thinking": True, "thinking_budget": NO_BUDGET}
        case ThinkingDisabled():
            return {"enable_thinking": False, "thinking_budget": 0}
        case _:
            return {"reasoning_effort": effort}


def _system(request: CountTokensRequest) -> list[Message]:
    """Returns the system prompt as a message, if there is one."""
    system = request.system
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    text = "\n\n".join(text for text in texts if not text.startswith(_BILLING))
    return [Message(role="system", content=text)] if text else []


def _messages(turns: Sequence[InputTurn]) -> list[Message]:
    """Converts turns to messages. Consecutive ones of the user are joined, and so are those of the assistant."""
    messages: list[Message] = []
    user, assistant = _UserTurn(), _AssistantTurn()
    for turn in turns:
        blocks = [TextBlock(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content
        if turn.role != "user":
            messages += user.end()
        if turn.role != "assistant":
            messages += assistant.end()
        match turn.role:
            case "user":
                user.add(blocks)
            case "assistant":
                assistant.add(blocks)
            case _:
                messages.append(Message(role="system", content="\n\n".join(_texts(blocks))))
    return [*messages, *user.end(), *assistant.end()]


@dataclass(slots=True)
class _UserTurn:
    """What the user said: results of calls, and texts after them."""

    _has_begun: bool = False
    _results: list[Message] = field(default_factory=list)
    _parts: list[TextPart] = field(default_factory=list)

    def add(self, blocks: Sequence[Any]) -> None:
        self._has_begun = True
        self._results += [_result(block) for block in blocks if isinstance(block, ToolResultBlock)]
        documents_first = sorted(blocks, key=lambda block: not isinstance(block, DocumentBlock))
        self._parts += [TextPart(type="text", text=text) for text in _texts(documents_first)]

    def end(self) -> list[Message]:
        """Returns the turn's messages and forgets them."""
        messages, parts = self._results, self._parts
        if parts or (self._has_begun and not messages):
            content: str | list[Part] = parts[0].text if len(parts) == 1 else [*parts] or ""
            messages = [*messages, Message(role="user", content=content)]
        self._has_begun, self._results, self._parts = False, [], []
        return messages


@dataclass(slots=True)
class _AssistantTurn:
    """What the assistant thought, said and called, which may be several messages."""

    _has_begun: bool = False
    _messages: list[Message] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _calls: list[ToolCall] = field(default_factory=list)

    def add(self, blocks: Sequence[Any]) -> None:
        self._has_begun = True
        between = "\n\n"
        for block in blocks:
            match block:
                case ThinkingBlock(thinking=thought, signature=signature):
                    if self._texts or self._calls:
                        self._end_message()
                    self._thoughts.append(thought or thought_in(signature))
                case ToolUseBlock(id=call_id, name=name, input=value):
                    call = FunctionCall(name=name, arguments=orjson.dumps(value).decode())
                    self._calls.append(ToolCall(id=call_id, function=call))
                case TextBlock() | DocumentBlock() | SearchResultBlock():
                    if self._calls:
                        self._end_message()
                    text = "".join(_texts([block]))
                    self._texts.append(between + text if self._texts else text)
                    between = ""
                case _:  # a thought or a record that only another service can read
                    pass

    def end(self) -> list[Message]:
        """Returns the turn's messages and forgets them."""
        if self._thoughts or self._texts or self._calls or (self._has_begun and not self._messages):
            self._end_message()
        messages, self._messages, self._has_begun = self._messages, [], False
        return messages

    def _end_message(self) -> None:
        message = Message(
            role="assistant",
            content="".join(self._texts) if self._texts or not self._calls else None,
            tool_calls=list(self._calls) or None,
            reasoning_content="\n".join(filter(None, self._thoughts)) or None,
        )
        self._messages.append(message)
        self._thoughts, self._texts, self._calls = [], [], []


def _result(block: ToolResultBlock) -> Message:
    content = block.content
    text = content if isinstance(content, str) else "\n".join(_texts(content or ()))
    return Message(role="tool", tool_call_id=block.tool_use_id, content=f"Error: {text}" if block.is_error else text)


def _texts(blocks: Iterable[ResultBlock | Any]) -> list[str]:
    """Returns what the model reads of blocks; nothing of those that are no text."""
    texts: list[str] = []
    for block in blocks:
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case DocumentBlock(title=title, context=context, source=source):
                texts.append(framed(title or UNNAMED, "\n\n".join(filter(None, [context, _document(source)]))))
            case SearchResultBlock(title=title, source=place, content=content):
                texts.append("\n\n".join([f"{title}\n{place}", *_texts(content)]))
            case ToolReferenceBlock(tool_name=name):
                texts.append(name)
    return texts


def _document(source: Any) -> str:
    if isinstance(source, PlainText):
        return source.data
    content = source.content
    return content if isinstance(content, str) else "\n".join(_texts(content))
