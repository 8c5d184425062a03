"""Qwen Code: a task in several steps, over `/v1/chat/completions`."""

from agents import CONTENT, DONE, TASK, Desk, call


def qwen(desk: Desk) -> str:
    """What Qwen Code prints."""
    return desk.run(
        ["qwen", "--auth-type", "openai", "--approval-mode", "yolo", "--prompt", TASK],
        OPENAI_API_KEY="none",
        OPENAI_BASE_URL=f"{desk.url}/v1",
        OPENAI_MODEL="tiny",
    )


def test_writes_a_file(desk: Desk) -> None:
    path = str(desk.folder / "greeting.txt")
    desk.script(
        [
            ("<tool_response>", DONE),
            ('"name":"write_file"', call("write_file", file_path=path, content=CONTENT)),
            ("", "{}"),
        ]
    )
    assert DONE in qwen(desk)
    assert (desk.folder / "greeting.txt").read_text() == CONTENT
    calls = [message for message in desk.requests("/v1/chat/completions")[-1]["messages"] if "tool_calls" in message]
    assert [each["tool_calls"][0]["function"]["name"] for each in calls] == ["write_file"]
