"""aider: a file that the model writes into its answer, over `/v1/chat/completions`."""

from agents import CONTENT, TASK, Desk


def test_writes_a_file(desk: Desk) -> None:
    desk.place(".aider.conf.yml", "aider")
    desk.script([(TASK, f"I write it.\n\ngreeting.txt\n```\n{CONTENT}\n```\n")])
    options = ["--yes-always", "--no-git", "--analytics-disable", "--no-check-update"]
    assert "Applied edit to greeting.txt" in desk.run(["aider", *options, "--message", TASK])
    assert (desk.folder / "greeting.txt").read_text() == f"{CONTENT}\n"
    assert desk.requests("/v1/chat/completions")
