"""Pagination of lists as in OpenAI's API: `after`, `before`, `limit` and `order` in a query, and the list object."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from app.interface.request import errors
from app.interface.users.texts import Item

_MOST = 100
_USUAL = 20
BEFORE = "before"
_KNOWN = frozenset({"after", "limit", "order", "include", "include[]"})


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The pagination parameters of a request."""

    after: str | None
    limit: int
    newest_first: bool
    """The order in which the objects are to be found: the opposite one, if the query has `before`."""
    backwards: bool = False
    """Whether the objects end before `after`, in the query's order, rather than begin behind it."""

    def cut(self, items: Sequence[Item]) -> list[Item]:
        """Returns this part of a whole list, and one more item if there is one. Raises ApiError (404)."""
        ordered = list(reversed(items)) if self.newest_first else list(items)
        if self.after is not None:
            place = next((place for place, item in enumerate(ordered) if item["id"] == self.after), None)
            if place is None:
                raise errors.ApiError(404, "There is no such item.", param="after", code="not_found")
            ordered = ordered[place + 1 :]
        return ordered[: self.limit + 1]

    def listed(self, found: Sequence[Any], limit: int | None = None) -> dict[str, Any]:
        """Returns `listed` of what was found, in the query's order. limit: instead of the query's."""
        limit = self.limit if limit is None else limit
        if not self.backwards:
            return listed(found, limit)
        return {**listed(list(reversed(found[:limit])), limit), "has_more": len(found) > limit}


def list_query(request: Request, *further: str, most: int = _MOST, usual: int = _USUAL) -> ListQuery:
    """Parses the query, which may have `further` parameters. most, usual: of `limit`. Raises ApiError (400).

    A route that also finds objects in the opposite order has `BEFORE` among `further`.
    """
    query = request.query_params
    if unknown := query.keys() - _KNOWN - set(further):
        name = min(unknown)
        raise errors.invalid(f"There is no parameter '{name}'.", name, "unknown_parameter")
    limit, order = query.get("limit", str(usual)), query.get("order", "desc")
    # Python raises another error for thousands of digits.
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 9 and 1 <= int(limit) <= most):
        raise errors.invalid(f"'limit' is a number from 1 to {most}.", "limit", "invalid_value")
    if order not in ("asc", "desc"):
        raise errors.invalid("'order' is asc or desc.", "order", "invalid_value")
    after, before, newest_first = query.get("after"), query.get(BEFORE), order == "desc"
    if before is None:
        return ListQuery(after, int(limit), newest_first)
    if after is not None:
        raise errors.invalid("'before' and 'after' exclude each other.", BEFORE, "invalid_value")
    return ListQuery(before, int(limit), not newest_first, backwards=True)


def listed(found: Sequence[Any], limit: int) -> dict[str, Any]:
    """Builds OpenAI's list object; `has_more` is set if there are more objects than the limit."""
    data = list(found[:limit])
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": len(found) > limit,
    }
