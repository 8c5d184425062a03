"""Lists page by page, forwards and back."""

from collections.abc import Callable
from typing import Any

from tests.app.interface.users.here import Site


async def test_before_is_the_page_that_ends_there(make_site: Callable[..., Site]) -> None:
    site = make_site()
    site.add("ann")
    secret = await site.log_in("ann")

    async def listed(path: str, **query: Any) -> tuple[list[str], bool]:
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        answer = (await site.ask("GET", f"{path}?{asked}", secret)).json()
        ids = [one["id"] for one in answer["data"]]
        assert (answer["first_id"], answer["last_id"]) == ((ids[0], ids[-1]) if ids else ("", ""))
        return ids, answer["has_more"]

    made = [(await site.ask("POST", "/v1/vector_stores", secret, {"name": str(n)})).json()["id"] for n in range(5)]
    items: Any = [{"role": "user", "content": str(number)} for number in range(5)]
    conversation = (await site.ask("POST", "/v1/conversations", secret, {"items": items})).json()["id"]
    for path in ("/v1/vector_stores", f"/v1/conversations/{conversation}/items"):
        ids, _ = await listed(path, order="asc")
        assert len(ids) == 5
        assert path != "/v1/vector_stores" or ids == made
        assert await listed(path, order="asc", before=ids[4], limit=2) == (ids[2:4], True)
        assert await listed(path, order="asc", before=ids[2], limit=2) == (ids[:2], False)
        assert await listed(path, order="asc", before=ids[0]) == ([], False)
        newest = ids[::-1]
        assert await listed(path, before=newest[3], limit=2) == (newest[1:3], True)
    for path in ("/v1/vector_stores", "/v1/files"):
        assert await site.code("GET", f"{path}?before=a&after=b", secret) == "400 invalid_value"
    assert await site.code("GET", "/v1/batches?before=a", secret) == "400 unknown_parameter"
