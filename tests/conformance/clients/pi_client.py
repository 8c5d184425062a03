"""Pi: a task in several steps, over `/v1/chat/completions`."""

from agents import CONTENT, DONE, TASK, Desk, call


def test_writes_a_file(desk: Desk) -> None:
    desk.place(".pi/agent/models.json", "Pi")
    desk.script([("<tool_response>", DONE), (TASK, call("write", path="greeting.txt", content=CONTENT))])
    assert DONE in desk.run(["pi", "--offline", "--model", "redoubt/tiny", "--print", TASK])
    assert (desk.folder / "greeting.txt").read_text() == CONTENT
    assert desk.steps("/v1/chat/completions") == ["write"]
