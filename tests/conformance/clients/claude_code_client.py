"""Claude Code: tasks in several steps, over `/v1/messages`."""

import base64
from dataclasses import replace
from typing import Any

from agents import CONTENT, DONE, TASK, Desk, call


def claude(desk: Desk, task: str = TASK, **environment: str) -> str:
    """What Claude Code prints."""
    return desk.run(
        ["claude", "--print", "--dangerously-skip-permissions", task],
        after=desk.printed("Claude Code"),
        IS_SANDBOX="1",  # permissions are bypassed as root
        **environment,
    )


def used(desk: Desk) -> list[Any]:
    """The calls in the last request."""
    desk.goes_on()
    blocks = [
        block
        for message in desk.requests("/v1/messages")[-1]["messages"]
        if message["role"] == "assistant"
        for block in message["content"]
    ]
    return [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]


def test_a_session_in_another_folder_begins_with_the_prompt_that_is_cached(desk: Desk) -> None:
    desk.script([("", DONE)])
    other = desk.home / "other"
    other.mkdir()
    for each, task in ((desk, TASK), (replace(desk, folder=other), "Read the file greeting.txt.")):
        assert DONE in claude(each, task, CLAUDE_CODE_DISABLE_AUTO_MEMORY="1")
    first, second = desk.prompts()
    # What differs is the task, and the environment, which comes after it.
    assert second.startswith(first[: len(first) * 3 // 4])


def test_writes_a_file(desk: Desk) -> None:
    path = str(desk.folder / "greeting.txt")
    desk.script([("File created", DONE), (TASK, f"I do it.\n{call('Write', file_path=path, content=CONTENT)}")])
    assert DONE in claude(desk)
    assert (desk.folder / "greeting.txt").read_text() == CONTENT
    assert used(desk) == [("Write", {"file_path": path, "content": CONTENT})]


def test_thinks_and_writes_a_file_with_a_command(desk: Desk) -> None:
    command = f"printf '{CONTENT}' > greeting.txt && echo written-it"
    thought = "<think>\nA command will do.\n</think>\n\n"
    desk.script([("\nwritten-it", DONE), (TASK, f"{thought}{call('Bash', command=command)}")])
    assert DONE in claude(desk)
    assert (desk.folder / "greeting.txt").read_text() == CONTENT
    assert used(desk) == [("Bash", {"command": command})]
    turns = desk.requests("/v1/messages")[-1]["messages"]
    blocks = [block for turn in turns if turn["role"] == "assistant" for block in turn["content"]]
    (signature,) = (block["signature"] for block in blocks if block["type"] == "thinking")
    # It asks not to see thoughts, so a thought comes back in its signature.
    assert base64.b64decode(signature.partition(".")[2]).decode() == "A command will do."
