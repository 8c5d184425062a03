"""mini-SWE-agent: a task in several steps, over `/v1/chat/completions`."""

from agents import CONTENT, TASK, Desk, call


def test_writes_a_file(desk: Desk) -> None:
    written = call("bash", command=f"printf '{CONTENT}' > greeting.txt && echo written-it")
    submitted = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    desk.script([("<tool_response>", submitted), (TASK, f"I write it.\n{written}")])
    command = ["mini", "--yolo", "--exit-immediately", "--task", TASK]
    desk.run(command, after=desk.printed("mini-SWE-agent"), LITELLM_LOCAL_MODEL_COST_MAP="true")
    assert (desk.folder / "greeting.txt").read_text() == CONTENT
    assert desk.steps("/v1/chat/completions") == ["bash"]
