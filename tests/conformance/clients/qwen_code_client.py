"""Qwen Code: a task in several steps, over `/v1/chat/completions`."""

from agents import CONTENT, DONE, TASK, Desk, call


def qwen(desk: Desk) -> str:
    """What Qwen Code prints."""
    desk.place(".qwen/settings.json", "Qwen Code")
    return desk.run(["qwen", "--approval-mode", "yolo", "--prompt", TASK])


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
    assert desk.steps("/v1/chat/completions") == ["write_file"]
