"""A user's collections of documents at the service. Functions raise OpenAIError and ChatError."""

from typing import Final

from openai import OpenAI
from openai.types import VectorStore

from app.client.account import ChatError

_MOST_LISTED: Final = 100


def collection_named(client: OpenAI, name: str, *, make: bool = False) -> VectorStore:
    """Returns the collection of that name or id. make: where there is none. Raises ChatError."""
    found = [one for one in client.vector_stores.list(limit=_MOST_LISTED) if name in (one.id, one.name)]
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise ChatError(f"There are several collections {name}: name one by its id, {ids}.")
    if found:
        return found[0]
    if make:
        return client.vector_stores.create(name=name)
    raise ChatError(f"There is no collection {name}: `redoubt knowledge list` lists yours.")
