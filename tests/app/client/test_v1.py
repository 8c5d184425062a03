"""What clients share, against a `/v1` on a real socket."""

import socket

import pytest
from openai import OpenAIError

from app.client import v1
from tests.fake_v1 import FakeV1, running


def test_a_client_lists_the_models() -> None:
    with running(FakeV1(key="open sesame")) as fake, v1.connect(fake.url, "open sesame") as client:
        assert v1.models(client) == [v1.Model("fake-model", 8192)]


def test_an_error_is_in_the_services_words() -> None:
    with (
        running(FakeV1(key="open sesame")) as fake,
        v1.connect(fake.url, "wrong") as client,
        pytest.raises(OpenAIError) as caught,
    ):
        v1.models(client)
    assert v1.reason(caught.value) == "Show a key."


def test_no_service_answers() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # not listening: connections are refused
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with v1.connect(address, None) as client, pytest.raises(OpenAIError) as caught:
            v1.models(client)
    assert "does not answer" in v1.reason(caught.value)


def test_another_service_answers() -> None:
    with (
        running(FakeV1()) as fake,
        v1.connect(f"{fake.url}/elsewhere", None) as client,
        pytest.raises(OpenAIError) as caught,
    ):
        v1.models(client)
    assert v1.reason(caught.value) == "Status 404: is that a Redoubt service?"
