"""Conversations that the service keeps for a user, as a client sees them: the newest one, its turns, the next answer.

All of it raises OpenAIError, as the library's own calls do. It knows nothing of how a chat is shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from openai import Omit, OpenAI, OpenAIError
from openai.types.chat import ChatCompletionMessageParam

_MOST_NEW_ITEMS = 20
"""In one request, as OpenAI allows."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one of the two has said."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Warmed:
    """A conversation whose next turn can begin at once."""

    tokens: int
    remembered_tokens: int
    """Of them, those that need not be computed again."""


def newest(client: OpenAI) -> str | None:
    """The id of the conversation that changed last."""
    found: Any = client.get("/conversations?limit=1", cast_to=object)
    return str(found["data"][0]["id"]) if found["data"] else None


def begin(client: OpenAI, said: Sequence[ChatCompletionMessageParam]) -> str:
    """A new conversation, in which that was said before; returns its id."""
    items: list[Any] = [{"role": one["role"], "content": one.get("content")} for one in said]
    conversation_id = client.conversations.create(items=items[:_MOST_NEW_ITEMS]).id
    for first in range(_MOST_NEW_ITEMS, len(items), _MOST_NEW_ITEMS):
        client.conversations.items.create(conversation_id, items=items[first : first + _MOST_NEW_ITEMS])
    return conversation_id


def last_turns(client: OpenAI, conversation_id: str, count: int) -> list[Turn]:
    """The last ones, in order."""
    page: Any = client.conversations.items.list(conversation_id, limit=count, order="desc")
    turns = [Turn(item.role, _text(item)) for item in page.data if item.type == "message"]
    return turns[::-1]


def warm(client: OpenAI, conversation_id: str, model: str, instructions: str | None) -> Warmed:
    """Has the service bring the conversation's pages into memory, and waits for it."""
    body = {"conversation": conversation_id, "model": model, "instructions": instructions}
    answer: Any = client.post("/memory/warm", body=body, cast_to=object)
    return Warmed(answer["tokens"], answer["remembered_tokens"])


def answer(
    client: OpenAI,
    conversation_id: str,
    question: str,
    *,
    model: str,
    instructions: str | None,
    temperature: float | Omit,
    max_tokens: int | Omit,
) -> Iterator[str]:
    """The answer's text as it is made. Leaving early closes the connection; the service keeps what came until then."""
    with client.responses.create(
        model=model,
        conversation=conversation_id,
        input=question,
        instructions=instructions,
        temperature=temperature,
        max_output_tokens=max_tokens,
        stream=True,
    ) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                yield event.delta
            elif event.type == "response.failed":
                failed = event.response.error
                raise OpenAIError("The answer has failed." if failed is None else failed.message)


def _text(item: Any) -> str:
    return "\n".join(part.text for part in item.content if getattr(part, "text", None))
