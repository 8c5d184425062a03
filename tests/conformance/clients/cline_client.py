"""Cline's command line: a task in several steps, over `/v1/chat/completions`."""

from agents import CONTENT, DONE, TASK, Desk, call


def test_writes_a_file(desk: Desk) -> None:
    desk.place(".cline/data/settings/providers.json", "Cline")
    path = str(desk.folder / "greeting.txt")
    desk.script([("<tool_response>", DONE), (TASK, call("editor", path=path, new_text=CONTENT))])
    # With a folder of its own for its data it leaves no process behind.
    command = ["cline", "--data-dir", str(desk.home / ".cline" / "data"), TASK]
    assert DONE in desk.run(command, CLINE_TELEMETRY_DISABLED="1")
    assert (desk.folder / "greeting.txt").read_text() == CONTENT
    assert desk.steps("/v1/chat/completions") == ["editor"]
