"""How much of what a search has found fits a response's prompt. Counts as planning does; knows no collection."""

from collections.abc import Sequence
from itertools import takewhile

from app.interface.generate.planning.chat import template_options
from app.interface.generate.planning.generation import window_options
from app.interface.generate.planning.kept_turns import limit_of
from app.interface.generate.planning.limits import Limits, OutputLimit
from app.interface.generate.planning.passages import framed
from app.interface.generate.planning.responses import chat_request
from app.interface.request.errors import ApiError
from app.interface.text.chat_model import ChatModel
from app.interface.text.instructions import is_system
from app.interface.wire.responses import FoundPassage, ResponseRequest

_JOINT_TOKENS = 8
"""Texts that are counted apart may have so many tokens more together."""


def room_tokens(model: ChatModel, request: ResponseRequest, limits: Limits) -> int:
    """Returns how many tokens of the context are free beside the prompt and the answer's reserve; 0 or more.

    request: with its history, and without what was found. Where planning leaves out the oldest turns, only the newest
    one counts. The reserve is the output's limit, or that of such conversations (`kept_turns`) if it is less. Slow for
    a long conversation. Raises nothing: what is wrong with the request is for planning to say.
    """
    context_tokens = model.context_tokens
    try:
        chat = chat_request(request)
        messages, limit_tokens = chat.messages, limit_of(context_tokens)
        if window_options(model, chat, None) is not None or chat.truncation == "auto":
            newest = max((at for at, one in enumerate(messages) if one.role == "user"), default=0)
            messages = [*takewhile(is_system, messages[:newest]), *messages[newest:]]
        else:
            wanted = OutputLimit(chat.output_limit, limits.default_max_tokens).wanted
            limit_tokens = max(limit_tokens, context_tokens - wanted)
        tools = () if chat.tool_choice == "none" else chat.tools or ()
        options = template_options(chat, model.thoughts.default)
        taken = len(model.chat_prompt(messages, tools, chat.response_format, options=options))
    except ApiError:
        return 0
    return max(0, limit_tokens - taken - _JOINT_TOKENS)


def most_that_fit(model: ChatModel, results: Sequence[FoundPassage], room: int) -> int:
    """Returns how many of the first results fit into `room` tokens, at least one: planning says if it does not fit.

    Raises ApiError (400) if the model has no chat template.
    """
    fits, fails = min(1, len(results)), len(results) + 1
    count = len(results)
    while fails - fits > 1:
        if model.question_tokens(framed(results[:count])) <= room:
            fits = count
        else:
            fails = count
        count = (fits + fails) // 2
    return fits
