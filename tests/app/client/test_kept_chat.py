"""Conversations that the service keeps: which branch a client shows, and changes while an answer is being written."""

from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from openai import ConflictError

from app.client import kept_chat, v1
from app.client.kept_chat import newest_branch
from app.client.turns import Message
from tests.fake_v1 import FakeV1, running


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


@pytest.mark.parametrize("refused", [2, 100])
def test_a_change_waits_until_the_last_answer_has_ended(monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    monkeypatch.setattr(kept_chat, "_CONFLICT_S", 0.001)
    came: list[str] = []

    def add_routes(app: FastAPI) -> None:
        @app.delete("/v1/conversations/{name}")
        async def delete(name: str) -> JSONResponse:
            came.append(name)
            error = {"message": "An answer is being written.", "code": "conversation_conflict"}
            return JSONResponse({"error": error}, 409) if len(came) <= refused else JSONResponse({})

    with running(FakeV1(), add_routes) as fake, v1.connect(fake.url, None) as client:
        if refused == 2:
            kept_chat.delete(client, "conv_1")
            assert came == ["conv_1"] * 3
        else:
            with pytest.raises(ConflictError):
                kept_chat.delete(client, "conv_1")
            assert len(came) == 10


def test_thoughts_do_not_count_where_what_was_said_is_compared() -> None:
    added: list[Any] = []

    def item(name: str, role: str, text: str) -> dict[str, Any]:
        return {"id": name, "type": "message", "role": role, "content": [{"text": text}]}

    def thought(name: str) -> dict[str, Any]:
        return {"id": name, "type": "reasoning", "content": [{"text": "hm"}]}

    stored = [item("m1", "user", "a"), thought("r1"), item("m2", "assistant", "b")]
    stored += [item("m3", "user", "c"), thought("r2"), item("m4", "assistant", "cut")]

    def add_routes(app: FastAPI) -> None:
        @app.get("/v1/conversations/conv_1/items")
        async def listed() -> JSONResponse:
            return JSONResponse({"data": stored, "has_more": False})

        @app.post("/v1/conversations/conv_1/items")
        async def add(request: Request) -> JSONResponse:
            added.append(await request.json())
            return JSONResponse({"last_id": "m5"})

    said = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    said.append(Message("assistant", "cut, and whole"))
    with running(FakeV1(), add_routes) as fake, v1.connect(fake.url, None) as client:
        kept_chat.settle(client, "conv_1", said)
    (change,) = added
    assert change["parent"] == "m3"
    assert [one["content"] for one in change["items"]] == ["cut, and whole"]
