"""Which of a conversation's branches a client shows."""

from typing import Any

import pytest

from app.client.kept_chat import newest_branch


@pytest.mark.parametrize(
    ("parents", "shown"),
    [
        ([], ""),
        ([None, None, None], "abc"),
        ([None, None, "a"], "ac"),
        ([None, None, "root", None], "cd"),
        ([None, None, "gone"], "abc"),
        (["c", "b", "a"], "ac"),
    ],
)
def test_the_newest_branch(parents: list[str | None], shown: str) -> None:
    items: list[dict[str, Any]] = [
        {"id": id_} | ({} if parent is None else {"parent": parent})
        for id_, parent in zip("abcdef", parents, strict=False)
    ]
    assert "".join(item["id"] for item in newest_branch(items)) == shown
