"""Continue's command line: a task in several steps, over `/v1/chat/completions`."""

from agents import CONTENT, DONE, TASK, Desk, call


def test_writes_a_file(desk: Desk) -> None:
    config = desk.place(".continue/config.yaml", "Continue")
    desk.script([("<tool_response>", DONE), (TASK, call("Write", filepath="greeting.txt", content=CONTENT))])
    command = ["cn", "--config", str(config), "--auto", "--print", TASK]
    assert DONE in desk.run(command, CONTINUE_TELEMETRY_ENABLED="0")
    assert (desk.folder / "greeting.txt").read_text() == CONTENT
    assert desk.steps("/v1/chat/completions") == ["Write"]
