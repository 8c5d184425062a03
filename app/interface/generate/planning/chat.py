"""Plans a chat request: its options, then its prompt, then the limits (`planning/generation.py`).

`functions` decides which functions may be called and by which grammar; `answers` turns the engine's tokens into text.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from math import inf
from typing import TypeVar

from app.interface.functions.requested import Functions, functions_of, grammar_of, in_channels
from app.interface.generate.planning.context_window import window_tokens
from app.interface.generate.planning.generation import GenerationOptions, make_job, window_options
from app.interface.generate.planning.job import Job, LeftOut
from app.interface.generate.planning.kept_turns import kept_turns, limit_of
from app.interface.generate.planning.limits import (
    BoundedPrompt,
    Limits,
    OutputLimit,
    chat_within_window,
    within_context,
)
from app.interface.generate.planning.passages import led_by
from app.interface.generate.planning.searches import search_of
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.text.begun_answer import Begun, ending_options
from app.interface.text.chat_model import ChatModel, Conversation
from app.interface.text.instructions import is_system
from app.interface.thinking.ends import Calls
from app.interface.thinking.requested import TemplateOptions, ThinkingDefault, wanted_thinking
from app.interface.wire.chat import ChatCompletionRequest, ChatReasoning
from app.interface.wire.tools import Tool

Given = TypeVar("Given")
_FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0, 6.0, inf)
"""By how much more than counted messages may take."""


def plan_chat(
    model: ChatModel,
    request: ChatCompletionRequest,
    limits: Limits,
    caller: Caller,
    request_id: str,
    documents: str = "",
) -> Job:
    """Renders and tokenizes once; slow for a long conversation. Raises ApiError (400).

    documents: what stands before the first question that the model sees; empty: nothing.
    """
    options = _options(model, request, limits)
    saves = caller.grants is not None
    prompt, shared_tokens, left_out = _prompt(model, request, limits, options, documents, saves=saves)
    begun = model.begun(request.messages) if options.thinking.continues else Begun("", "")
    thought = model.thoughts.within(prompt.token_ids, begun)
    if begun.text:
        options = _going_on(begun.text, options, in_channels=thought is not None)
    if options.grammar is not None and thought is not None and not begun.text:
        if thought.is_expected:
            grammar = grammar_of(request, options.functions, model.tokenizer.added, thought, model.dialects)
            options = replace(options, grammar=grammar)
        else:  # the grammar leaves no room for a thought
            thought = None
    if thought is not None and options.search is None and (tokens := options.thinking.budget) is not None:
        options = replace(options, thought=model.thoughts.budget(thought, tokens, _calls(options.functions)))
    if thought is not None and thought.in_channels and options.functions is not None:
        options = replace(options, functions=in_channels(options.functions))
    job = make_job(model, request, limits, caller, request_id, options=options, prompts=[prompt], starts_text=True)
    echoed = begun.text if request.echo else ""
    return replace(job, shared_tokens=shared_tokens, thought=thought, left_out=left_out, begun=echoed)


def plan_as_chat(
    model: ChatModel,
    chat: ChatCompletionRequest,
    limits: Limits,
    caller: Caller,
    request_id: str,
    name_of: Callable[[str], str],
    documents: str = "",
) -> Job:
    """Plans a request of another API by its equivalent chat request. Raises ApiError (400).

    name_of: the client's name of a chat request's field, for errors. documents: see `plan_chat`.
    """
    try:
        job = plan_chat(model, chat, limits, caller, request_id, documents)
    except errors.ApiError as error:
        raise error.renamed(name_of) from None
    if job.grammar is None:
        return job
    return replace(job, grammar=replace(job.grammar, fields=tuple(map(name_of, job.grammar.fields))))


def _options(model: ChatModel, request: ChatCompletionRequest, limits: Limits) -> GenerationOptions:
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise errors.invalid("'max_tokens' and 'max_completion_tokens' contradict each other.", "max_completion_tokens")
    if request.top_logprobs is not None and not request.logprobs:
        raise errors.invalid("'top_logprobs' is allowed only with 'logprobs': true.", "top_logprobs", "invalid_value")
    functions = functions_of(request)
    if functions is not None:
        functions = replace(functions, dialects=model.parsed_dialects)
    grammar = grammar_of(request, functions, model.tokenizer.added, dialects=model.dialects)
    search = search_of(request, limits.max_beams)
    thinking = template_options(request, model.thoughts.default)
    thinking = ending_options(
        thinking,
        request.messages,
        continues=request.continue_final_message,
        opens_answer=request.add_generation_prompt,
    )
    if request.echo and not thinking.continues:
        raise errors.invalid("'echo' is allowed only with 'continue_final_message'.", "echo", "invalid_value")
    if search is not None and (field := request.budget_field) is not None:
        raise errors.invalid(f"'{field}' does not go with beam search or contrastive search.", field)
    window = window_options(model, request, search)
    leaves_out_turns = window is not None or request.truncation == "auto"
    return GenerationOptions(search, window, leaves_out_turns, functions, grammar, thinking)


def template_options(request: ChatCompletionRequest, default: ThinkingDefault) -> TemplateOptions:
    """Returns how much the model should think. Raises ApiError (400) for two fields that contradict each other."""
    other = request.reasoning or ChatReasoning()
    return wanted_thinking(
        default,
        effort=_either(request.reasoning_effort, "reasoning_effort", other.effort, "reasoning.effort"),
        thinks=_either(request.enable_thinking, "enable_thinking", other.enabled, "reasoning.enabled"),
        budget=_either(request.thinking_budget, "thinking_budget", other.max_tokens, "reasoning.max_tokens"),
        variables=request.chat_template_kwargs,
    )


def _either(value: Given | None, field: str, other: Given | None, other_field: str) -> Given | None:
    if value is not None and other is not None and value != other:
        raise errors.invalid(f"'{field}' and '{other_field}' contradict each other.", other_field, "invalid_value")
    return other if value is None else value


def _going_on(begun: str, options: GenerationOptions, *, in_channels: bool) -> GenerationOptions:
    """Returns the options of an output that goes on with an answer's text. Raises ApiError (400)."""
    functions = options.functions
    if _calls(functions) == "must":
        message = "'tool_choice': an answer whose text has begun can't be made a call."
        raise errors.invalid(message, "tool_choice", "invalid_value")
    if functions is not None and functions.bare != "any" and in_channels:
        raise errors.invalid("'tools': functions can't be strict after a text has begun.", "tools", "invalid_value")
    return replace(
        options,
        grammar=None if options.grammar is None else options.grammar.going_on(begun),
        functions=None if functions is None else replace(functions, bare="none"),
    )


def _calls(functions: Functions | None) -> Calls:
    if functions is None:
        return "none"
    return "may" if functions.mode == "auto" else "must"


def _prompt(
    model: ChatModel,
    request: ChatCompletionRequest,
    limits: Limits,
    options: GenerationOptions,
    documents: str,
    *,
    saves: bool,
) -> tuple[BoundedPrompt, int, LeftOut | None]:
    """Returns the prompt, how many of its tokens a user's other chats may share, and what is left out.

    The number is 0 where nobody needs it: KV pages are not saved, and the context does not shift.
    """
    tools = (request.tools or ()) if options.functions is not None else ()
    form, wanted = request.response_format, options.thinking
    limit = OutputLimit(request.output_limit, limits.default_max_tokens)
    context_tokens, window, left_out, conversation = model.context_tokens, options.window, None, None
    if window is not None and window.context_window is not None:
        context_tokens = window_tokens(window.context_window, context_tokens)
        window = replace(window, context_window=context_tokens)
    if options.leaves_out_turns:
        conversation, left_out = _kept(model, request, tools, wanted, context_tokens, documents)
    elif saves:
        messages = led_by(request.messages, documents)
        conversation = model.conversation(messages, tools, form, bounded=True, options=wanted)
    if conversation is None:
        token_ids = model.chat_prompt(led_by(request.messages, documents), tools, form, options=wanted)
        return within_context(token_ids, limit, context_tokens, "messages"), 0, None
    if window is None:
        bounded = within_context(conversation.token_ids, limit, context_tokens, "messages")
    else:
        bounded = chat_within_window(
            conversation.token_ids,
            limit,
            window,
            context_tokens=context_tokens,
            system_tokens=conversation.system_tokens,
        )
    return bounded, conversation.shared_tokens, left_out


def _kept(
    model: ChatModel,
    request: ChatCompletionRequest,
    tools: Sequence[Tool],
    options: TemplateOptions,
    context_tokens: int,
    documents: str,
) -> tuple[Conversation, LeftOut]:
    """Returns the part of the conversation that the model sees. Raises ApiError (400) if the shortest does not fit.

    The sizes of messages are near the truth. Where a template is so unlike what was measured of it that the prompt
    takes the answer's reserve, they count as more.
    """
    messages, form, limit_tokens = request.messages, request.response_format, limit_of(context_tokens)
    system = list(takewhile(is_system, messages))
    system_tokens = model.system_size(system, tools, form, options)
    if documents:
        system_tokens += model.question_tokens(documents)
    sizes = model.message_sizes(messages[len(system) :])
    most_tokens = (limit_tokens + context_tokens) // 2
    for factor in _FACTORS:
        kept = kept_turns(messages, sizes, room_tokens=round((limit_tokens - system_tokens) / factor))
        shown = led_by(kept.messages, documents)
        conversation = model.conversation(shown, tools, form, bounded=kept.is_shortest, options=options)
        if kept.is_shortest or len(conversation.token_ids) <= most_tokens:
            break
    return conversation, LeftOut(kept.left_out_turns, limit_tokens)
