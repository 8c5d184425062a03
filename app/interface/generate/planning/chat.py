"""Plans a chat request: its options, then its prompt, then the limits (`planning/generation.py`).

`functions` decides which functions may be called and by which grammar; `answers` turns the engine's tokens into text.
"""

from dataclasses import replace

from app.interface.functions.requested import functions_of, grammar_of, in_channels
from app.interface.generate.planning.generation import GenerationOptions, make_job, window_options
from app.interface.generate.planning.job import Job
from app.interface.generate.planning.limits import BoundedPrompt, Limits, OutputLimit, within_context, within_window
from app.interface.generate.planning.searches import search_of
from app.interface.request import errors
from app.interface.request.callers import Caller
from app.interface.text.chat_model import ChatModel
from app.interface.thinking.marks import Thought
from app.interface.thinking.requested import TemplateOptions
from app.interface.wire.chat import ChatCompletionRequest


def plan_chat(model: ChatModel, request: ChatCompletionRequest, limits: Limits, caller: Caller, request_id: str) -> Job:
    """Renders and tokenizes once; slow for a long conversation. Raises ApiError (400)."""
    options = _options(model, request, limits)
    prompt, shared_tokens = _prompt(model, request, limits, options, saves=caller.grants is not None)
    thought: Thought | None = model.thought_after(prompt.token_ids)
    if options.grammar is not None and thought is not None:
        if thought.is_expected:
            grammar = grammar_of(request, options.functions, model.added_tokens, thought, model.dialects)
            options = replace(options, grammar=grammar)
        else:  # the grammar leaves no room for a thought
            thought = None
    if thought is not None and thought.in_channels and options.functions is not None:
        options = replace(options, functions=in_channels(options.functions))
    job = make_job(model, request, limits, caller, request_id, options=options, prompts=[prompt], starts_text=True)
    return replace(job, shared_tokens=shared_tokens, thought=thought)


def _options(model: ChatModel, request: ChatCompletionRequest, limits: Limits) -> GenerationOptions:
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise errors.invalid("'max_tokens' and 'max_completion_tokens' contradict each other.", "max_completion_tokens")
    if request.top_logprobs is not None and not request.logprobs:
        raise errors.invalid("'top_logprobs' is allowed only with 'logprobs': true.", "top_logprobs", "invalid_value")
    functions = functions_of(request)
    if functions is not None:
        functions = replace(functions, dialects=model.parsed_dialects)
    grammar = grammar_of(request, functions, model.added_tokens, dialects=model.dialects)
    search = search_of(request, limits.max_beams)
    return GenerationOptions(search, window_options(model, request, search), functions, grammar)


def template_options(request: ChatCompletionRequest) -> TemplateOptions:
    """Returns the request's settings for the chat template."""
    return TemplateOptions(request.reasoning_effort, request.enable_thinking, request.chat_template_kwargs or {})


def _prompt(
    model: ChatModel, request: ChatCompletionRequest, limits: Limits, options: GenerationOptions, *, saves: bool
) -> tuple[BoundedPrompt, int]:
    """Returns the prompt, and how many of its tokens are system prompt and tools; 0 unless KV pages are saved."""
    tools = (request.tools or ()) if options.functions is not None else ()
    form, wanted = request.response_format, template_options(request)
    tokens, field = request.output_limit
    limit = OutputLimit(tokens, limits.default_max_tokens, field)
    if options.window is None and not saves:
        token_ids = model.chat_prompt(request.messages, tools, form, options=wanted)
        return within_context(token_ids, limit, model.context_tokens, "messages"), 0
    if options.window is None:
        conversation = model.conversation(request.messages, tools, form, bounded=True, options=wanted)
        bounded = within_context(conversation.token_ids, limit, model.context_tokens, "messages")
        return bounded, conversation.system_tokens
    conversation = model.conversation(request.messages, tools, form, options=wanted)
    moved = within_window(
        conversation.token_ids,
        limit,
        options.window,
        context_tokens=model.context_tokens,
        system_tokens=conversation.system_tokens,
        prompt_field="messages",
    )
    return moved, 0
