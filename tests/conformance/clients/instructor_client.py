"""instructor: typed answers, in each of its modes that a small model can follow."""

import asyncio
from typing import Any, Literal

import instructor
import openai
import pytest
from pydantic import BaseModel, Field


class Address(BaseModel):
    street: str = Field(max_length=24)
    number: int = Field(ge=1, le=999)


class Person(BaseModel):
    name: str = Field(max_length=24)
    age: int = Field(ge=0, le=150)
    likes: Literal["red", "blue"]
    address: Address | None = None


class Label(BaseModel):
    label: Literal["spam", "ham"]


MESSAGES: list[Any] = [{"role": "user", "content": "Jane Doe is 30 years old, likes red and lives at 5 Sea Road."}]
FORCED = [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA]
"""The grammar holds the answer to the model's schema."""

XFAIL: dict[str, str] = {}


@pytest.fixture
def options(model: str) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 256, "max_retries": 0}


def made(base_url: str, mode: Any) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=base_url, api_key="none"), mode=mode)


@pytest.mark.parametrize("mode", FORCED, ids=lambda mode: mode.value)
def test_create(base_url: str, options: dict[str, Any], mode: Any) -> None:
    person = made(base_url, mode).chat.completions.create(response_model=Person, **options)
    assert isinstance(person, Person)


@pytest.mark.parametrize("mode", FORCED, ids=lambda mode: mode.value)
def test_create_with_completion(base_url: str, options: dict[str, Any], mode: Any) -> None:
    label, raw = made(base_url, mode).chat.completions.create_with_completion(response_model=Label, **options)
    assert label.label in ("spam", "ham")
    assert raw.usage.completion_tokens > 0


@pytest.mark.parametrize("mode", FORCED, ids=lambda mode: mode.value)
def test_partial(base_url: str, options: dict[str, Any], mode: Any) -> None:
    pieces = list(made(base_url, mode).chat.completions.create_partial(response_model=Person, **options))
    assert len(pieces) > 1
    assert pieces[-1].name is not None
    assert pieces[-1].age is not None


def test_iterable(base_url: str, options: dict[str, Any]) -> None:
    client = made(base_url, instructor.Mode.TOOLS)
    labels = list(client.chat.completions.create_iterable(response_model=Label, **options))
    assert labels
    assert all(isinstance(label, Label) for label in labels)


def test_async(base_url: str, options: dict[str, Any]) -> None:
    async def create() -> Any:
        client: Any = instructor.from_openai(openai.AsyncOpenAI(base_url=base_url, api_key="none"))
        return await client.chat.completions.create(response_model=Label, **options)

    assert asyncio.run(create()).label in ("spam", "ham")
