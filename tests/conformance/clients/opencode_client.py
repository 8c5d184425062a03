"""opencode: a task in several steps, over `/v1/chat/completions`."""

import json
from typing import Any

from agents import CONTENT, DONE, TASK, Desk, call


def opencode(desk: Desk) -> str:
    """What opencode prints."""
    provider: dict[str, Any] = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Redoubt",
        "options": {"baseURL": f"{desk.url}/v1", "apiKey": "none"},
        "models": {"tiny": {"name": "tiny", "limit": {"context": 900_000, "output": 4096}}},
    }
    config = {
        "provider": {"redoubt": provider},
        "model": "redoubt/tiny",
        "small_model": "redoubt/tiny",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"edit": "allow", "bash": "allow"},
    }
    return desk.run(
        ["opencode", "run", "--model", "redoubt/tiny", TASK],
        OPENCODE_CONFIG_CONTENT=json.dumps(config),
        OPENCODE_DISABLE_MODELS_FETCH="1",
        OPENCODE_DISABLE_AUTOUPDATE="1",
        OPENCODE_DISABLE_LSP_DOWNLOAD="1",
    )


def test_writes_a_file(desk: Desk) -> None:
    path = str(desk.folder / "greeting.txt")
    desk.script(
        [
            ("<tool_response>", DONE),
            ('"name":"write"', call("write", filePath=path, content=CONTENT)),
            ("", "A title"),
        ]
    )
    assert DONE in opencode(desk)
    assert (desk.folder / "greeting.txt").read_text() == CONTENT
    calls = [message for message in desk.requests("/v1/chat/completions")[-1]["messages"] if "tool_calls" in message]
    assert [each["tool_calls"][0]["function"]["name"] for each in calls] == ["write"]
