"""From a response request to a job, by way of the chat request that makes the same answer.

Errors name the fields of the client's own request, not those of the chat request.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.interface import errors
from app.interface.callers import Caller
from app.interface.errors import ApiError
from app.interface.planning.chat import plan_chat
from app.interface.planning.job import Job
from app.interface.planning.limits import Limits
from app.interface.text.chat_model import ChatModel
from app.interface.wire.chat import (
    ChatCompletionRequest,
    FunctionCall,
    FunctionDefinition,
    JsonSchema,
    Message,
    ResponseFormat,
    Tool,
    ToolCall,
)
from app.interface.wire.fields import MAX_MESSAGES
from app.interface.wire.responses import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputMessage,
    InputTextPart,
    NamedFunctionChoice,
    ResponseRequest,
    TextFormat,
)

_FIELDS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
}
"""A chat request's fields and their names in a response request."""


def plan_response(model: ChatModel, request: ResponseRequest, limits: Limits, caller: Caller, request_id: str) -> Job:
    """Renders and tokenizes once; takes long for a long conversation. Raises ApiError (400)."""
    try:
        job = plan_chat(model, chat_request(request), limits, caller, request_id)
    except ApiError as error:
        raise renamed_for_responses(error) from None
    if job.grammar is None:
        return job
    return replace(job, grammar=replace(job.grammar, fields=tuple(map(_field, job.grammar.fields))))


def chat_request(request: ResponseRequest) -> ChatCompletionRequest:
    """The chat request that makes the same answer. Raises ApiError (400)."""
    tools = [
        Tool(
            type="function",
            function=FunctionDefinition(
                name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
            ),
        )
        for tool in request.tools or ()
    ]
    choice: Any = request.tool_choice
    if isinstance(choice, NamedFunctionChoice):
        choice = {"type": "function", "function": {"name": choice.name}}
    elif choice == "auto" and not tools:
        choice = None
    messages = _messages(request)
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
        response_format=_response_format(request.text.format if request.text else None),
        tools=tools or None,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls if tools else None,
        logprobs=request.logprobs or None,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        return_progress=request.return_progress,
    )


def renamed_for_responses(error: ApiError) -> ApiError:
    """The error with the response request's field in place of the chat request's."""
    if error.param is None:
        return error
    field = _field(error.param)
    return replace(error, message=error.message.replace(f"'{error.param}'", f"'{field}'"), param=field)


def _field(name: str) -> str:
    return _FIELDS.get(name, name.replace("].function.", "]."))


def _response_format(form: TextFormat | None) -> ResponseFormat | None:
    if form is None:
        return None
    rest = {"name": form.name, "description": form.description, "schema": form.schema_, "strict": form.strict}
    if form.type != "json_schema":
        for field, value in rest.items():
            if value is not None:
                message = f"'text.format.{field}' is allowed only where its type is json_schema."
                raise errors.invalid(message, f"text.format.{field}", "invalid_value")
        return ResponseFormat(type=form.type)
    for field in ("name", "schema"):
        if rest[field] is None:
            raise errors.invalid(
                f"'text.format.{field}' is missing.", f"text.format.{field}", "missing_required_parameter"
            )
    return ResponseFormat(type="json_schema", json_schema=JsonSchema.model_validate(rest))


def _messages(request: ResponseRequest) -> list[Message]:
    """The conversation: instructions and leading system messages become one message, and so do consecutive calls."""
    items = [InputMessage(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    messages: list[Message] = []
    system = [request.instructions] if request.instructions is not None else []
    calls: list[ToolCall] = []
    assistant_text: str | None = None  # what the assistant wrote right before its calls

    def end_turn() -> None:
        nonlocal assistant_text
        if calls or assistant_text is not None:
            messages.append(Message(role="assistant", content=assistant_text, tool_calls=list(calls) or None))
        calls.clear()
        assistant_text = None

    for item in items:
        match item:
            case FunctionCallItem():
                function = FunctionCall(name=item.name, arguments=item.arguments)
                calls.append(ToolCall(id=item.call_id, function=function))
            case FunctionCallOutputItem():
                end_turn()
                messages.append(Message(role="tool", tool_call_id=item.call_id, content=_text(item.output)))
            case InputMessage(role="assistant"):
                end_turn()
                assistant_text = _text(item.content)
            case InputMessage(role="system" | "developer") if not messages and assistant_text is None and not calls:
                system.append(_text(item.content))
            case InputMessage():
                end_turn()
                messages.append(Message(role=item.role, content=_text(item.content)))
    end_turn()
    return [*([Message(role="system", content="\n\n".join(system))] if system else []), *messages]


def _text(content: str | Sequence[InputTextPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
