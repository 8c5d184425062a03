"""opencode: a task in several steps, over `/v1/chat/completions`."""

import json

from agents import CONTENT, DONE, TASK, Desk, call


def opencode(desk: Desk) -> str:
    """What opencode prints."""
    printed = json.loads(desk.printed("opencode"))
    config = printed | {"autoupdate": False, "share": "disabled", "permission": {"edit": "allow", "bash": "allow"}}
    return desk.run(
        ["opencode", "run", TASK],
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
    assert desk.steps("/v1/chat/completions") == ["write"]
