"""Plans a response request by converting it to an equivalent chat request.

Errors name the fields of the client's own request, not those of the chat request.
"""

import re
from collections.abc import Sequence

import orjson

from app.interface.functions.response_tools import OfferedTool, alias_of, chosen, file_search_of, offered_tools
from app.interface.generate.planning.chat import plan_as_chat
from app.interface.generate.planning.job import Job
from app.interface.generate.planning.limits import Limits
from app.interface.generate.planning.passages import framed as framed_passages
from app.interface.generate.planning.passages import whole_documents
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.request.errors import ApiError
from app.interface.text.chat_model import ChatModel
from app.interface.wire.answer_forms import JsonSchema, ResponseFormat
from app.interface.wire.attached import InputFilePart, files_first
from app.interface.wire.chat import ChatCompletionRequest, ChatReasoning, FunctionCall, Message, ToolCall
from app.interface.wire.fields import MAX_MESSAGES
from app.interface.wire.response_items import (
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FileSearchCallItem,
    FoundPassageItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    HostedCallItem,
    InputItem,
    InputMessage,
    InputTextPart,
    PresentSearchItem,
    ReasoningItem,
)
from app.interface.wire.response_tools import FileSearchTool
from app.interface.wire.responses import OutputFileSearch, ResponseRequest, TextFormat

_FIELDS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format.grammar": "text.format.grammar",
    "response_format.regex": "text.format.regex",
    "reasoning_effort": "reasoning.effort",
}
"""Maps a chat request's fields to a response request's."""
_ONLY_FOR_USERS = "is for users only, who log in or send a key of their own"


def plan_response(model: ChatModel, request: ResponseRequest, limits: Limits, caller: Caller, request_id: str) -> Job:
    """Renders and tokenizes once; slow for a long conversation. Raises ApiError (400)."""
    offered = offered_tools(request.tools, request.tool_choice)
    chat = chat_request(request)
    found = _read_whole(request)
    documents = "" if found is None else whole_documents(found)
    return plan_as_chat(
        model, chat, limits, caller, request_id, lambda name: _field(_tool_field(name, offered)), documents
    )


def _read_whole(request: ResponseRequest) -> Sequence[FoundPassageItem] | None:
    """Returns the documents that were read whole for the question; None: none were."""
    items = () if isinstance(request.input, str) else request.input
    present = next((item for item in reversed(items) if isinstance(item, PresentSearchItem)), None)
    return present.results if present is not None and present.whole else None


def question_place(items: Sequence[InputItem]) -> int | None:
    """Returns the place of the user's message that is to be answered, also after calls and their results.

    None: the answer goes on with something else, such as an answer's beginning.
    """
    said = [item for item in items if not isinstance(item, FileSearchCallItem | HostedCallItem)]
    said = [item for item in said if not (isinstance(item, InputMessage) and item.role in ("system", "developer"))]
    last = said[-1] if said else None
    if not isinstance(last, FunctionCallOutputItem | CustomToolCallOutputItem) and not _is_question(last):
        return None
    return next((place for place in reversed(range(len(items))) if _is_question(items[place])), None)


def found_before(request: ResponseRequest) -> Sequence[FoundPassageItem] | None:
    """Returns what an earlier step towards the answer has found for the question; None: nothing was searched.

    Of documents that were read whole it has only what an answer cited: they are read again.
    """
    items = () if isinstance(request.input, str) else request.input
    place = question_place(items)
    found = None if place is None else next(iter(items[place + 1 :]), None)
    if not isinstance(found, FileSearchCallItem) or found.whole or found.results is None:
        return None
    return found.results if not found.results or any(one.text for one in found.results) else None


def with_search(request: ResponseRequest, search: OutputFileSearch) -> ResponseRequest:
    """Returns the request with what was found behind its question, in the place of what earlier steps have found."""
    given = [InputMessage(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    place = question_place(given)
    assert place is not None  # there was something to search for
    behind = [item for item in given[place + 1 :] if not isinstance(item, FileSearchCallItem)]
    present = PresentSearchItem.model_validate(search.model_dump())
    return request.model_copy(update={"input": [*given[: place + 1], present, *behind]})


def _is_question(item: object) -> bool:
    return isinstance(item, InputMessage) and item.role == "user"


def chat_request(request: ResponseRequest) -> ChatCompletionRequest:
    """Returns the equivalent chat request. Raises ApiError (400)."""
    offered = offered_tools(request.tools, request.tool_choice)
    tools = [tool.as_function for tool in offered]
    choice = chosen(offered, request.tool_choice, file_search_of(request.tools, request.tool_choice))
    messages = _messages(request)
    if not messages:
        raise errors.invalid("'input' has no item that the model could answer.", "input", "invalid_value")
    if len(messages) > MAX_MESSAGES:  # the instructions are one, too
        message = f"'input' and 'instructions' make more than {MAX_MESSAGES} messages."
        raise errors.invalid(message, "input", "invalid_value")
    return ChatCompletionRequest(
        model=request.model,
        messages=messages,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        do_sample=request.do_sample,
        use_cache=request.use_cache,
        response_format=_response_format(request.text.format if request.text else None),
        tools=tools or None,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls if tools else None,
        logprobs=request.logprobs or None,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        enable_thinking=request.enable_thinking,
        thinking_budget=request.thinking_budget,
        reasoning=ChatReasoning(max_tokens=request.reasoning.max_tokens) if request.reasoning else None,
        chat_template_kwargs=request.chat_template_kwargs,
        return_progress=request.return_progress,
        truncation=request.truncation,
        on_overflow=request.on_overflow,
    )


def renamed_for_responses(error: ApiError) -> ApiError:
    """Returns the error with the response request's field instead of the chat request's."""
    return error.renamed(_field)


def _tool_field(name: str, offered: Sequence[OfferedTool]) -> str:
    """Returns the field with the tool's place in the request, which may be within a namespace."""
    found = re.match(r"tools\[(\d+)\]", name)
    if found is None:
        return name
    tool, rest = offered[int(found[1])], name[found.end() :]
    if tool.tool.type == "custom":
        rest = rest.replace(".function.parameters", ".format.definition")
    return tool.field + rest


def _field(name: str) -> str:
    return _FIELDS.get(name, name.replace("].function.", "]."))


def _response_format(form: TextFormat | None) -> ResponseFormat | None:
    if form is None:
        return None
    rest = {"name": form.name, "description": form.description, "schema": form.schema_, "strict": form.strict}
    grammars = {"grammar": form.grammar, "regex": form.regex}
    for field, value in (rest | grammars).items():
        needed = "json_schema" if field in rest else field
        if value is not None and form.type != needed:
            message = f"'text.format.{field}' is allowed only where its type is {needed}."
            raise errors.invalid(message, f"text.format.{field}", "invalid_value")
    if form.type != "json_schema":
        if form.type in grammars and grammars[form.type] is None:
            field = f"text.format.{form.type}"
            raise errors.invalid(f"'{field}' is missing.", field, "missing_required_parameter")
        return ResponseFormat(type=form.type, grammar=form.grammar, regex=form.regex)
    for field in ("name", "schema"):
        if rest[field] is None:
            raise errors.invalid(
                f"'text.format.{field}' is missing.", f"text.format.{field}", "missing_required_parameter"
            )
    return ResponseFormat(type="json_schema", json_schema=JsonSchema.model_validate(rest))


def _messages(request: ResponseRequest) -> list[Message]:
    """Converts items to messages: instructions and leading system messages are merged, and so are consecutive calls.

    A thought becomes part of the assistant's next message.
    """
    items = [InputMessage(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    messages: list[Message] = []
    system = [request.instructions] if request.instructions is not None else []
    calls: list[ToolCall] = []
    thoughts: list[str] = []  # before the pending text and calls
    assistant_text: str | None = None  # the text right before the calls
    are_whole = _read_whole(request) is not None

    def end_turn() -> None:
        nonlocal assistant_text
        if calls or assistant_text is not None:
            thought = "\n".join(filter(None, thoughts)) or None
            messages.append(
                Message(
                    role="assistant", content=assistant_text, tool_calls=list(calls) or None, reasoning_content=thought
                )
            )
        calls.clear()
        thoughts.clear()
        assistant_text = None

    for item in items:
        match item:
            case FunctionCallItem():
                calls.append(_call(item.call_id, alias_of(item.name, item.namespace), item.arguments))
            case CustomToolCallItem():
                arguments = orjson.dumps({"input": item.input}).decode()
                calls.append(_call(item.call_id, alias_of(item.name, item.namespace), arguments))
            case FunctionCallOutputItem() | CustomToolCallOutputItem():
                end_turn()
                messages.append(Message(role="tool", tool_call_id=item.call_id, content=shown_text(item.output)))
            case ReasoningItem():
                if calls or assistant_text is not None:
                    end_turn()
                thoughts.append(item.thought)
            case InputMessage(role="assistant"):
                if calls or assistant_text is not None:
                    end_turn()
                assistant_text = shown_text(item.content)
            case InputMessage(role="system" | "developer") if not (messages or calls or assistant_text):
                system.append(shown_text(item.content))
            case InputMessage():
                end_turn()
                messages.append(Message(role=item.role, content=shown_text(item.content)))
            case FileSearchCallItem() if item.whole and are_whole:
                pass  # the documents stand before the first question, once
            case FileSearchCallItem(results=[_, *_]) if not any(one.text for one in item.results or ()):
                pass  # the answer cited none of the documents that were read for it
            case FileSearchCallItem() if item.results is not None and messages and messages[-1].role == "user":
                messages[-1] = _followed(messages[-1], framed_passages(item.results))
            case _:  # another service's record of a tool that it ran
                pass
    end_turn()
    return [*([Message(role="system", content="\n\n".join(system))] if system else []), *messages]


def _followed(message: Message, text: str) -> Message:
    content = f"{message.content}\n\n{text}" if isinstance(message.content, str) else message.content
    return message.model_copy(update={"content": content})


def _call(call_id: str, name: str, arguments: str) -> ToolCall:
    return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments))


def shown_text(content: str | Sequence[InputTextPart | InputFilePart]) -> str:
    """Returns a message with its files, as the model sees it."""
    if isinstance(content, str):
        return content
    return "\n".join(part.shown if isinstance(part, InputFilePart) else part.text for part in files_first(content))


def refuse_stored(request: ResponseRequest) -> None:
    """Raises ApiError (400) if a request without a user needs stored texts or collections."""
    for i, tool in enumerate(request.tools or ()):
        if isinstance(tool, FileSearchTool):
            raise errors.invalid(f"'tools[{i}]' {_ONLY_FOR_USERS}.", f"tools[{i}]", "unsupported_parameter")
    wanted = {
        "store": request.store or None,
        "background": request.background or None,
        "previous_response_id": request.previous_response_id,
        "conversation": request.conversation,
    }
    for name, value in wanted.items():
        if value is not None:
            raise errors.invalid(f"'{name}' {_ONLY_FOR_USERS}.", name, "unsupported_parameter")
