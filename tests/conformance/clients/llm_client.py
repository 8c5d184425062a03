"""llm, the command line: an answer, and a function that is called, over `/v1/chat/completions`."""

import pytest
from agents import DONE, Desk, call

PLACE = ".config/io.datasette.llm/extra-openai-models.yaml"
FUNCTIONS = "def double(number: int) -> int:\n    return 2 * number\n"


@pytest.mark.parametrize("options", [(), ("--no-stream",)])
def test_answers(desk: Desk, options: tuple[str, ...]) -> None:
    desk.place(PLACE, "llm")
    desk.script([("What is done?", DONE)])
    assert desk.run(["llm", "-m", "redoubt", *options, "What is done?"]).strip() == DONE


def test_calls_a_function(desk: Desk) -> None:
    desk.place(PLACE, "llm")
    desk.script([("\n42\n", DONE), ("Double it.", call("double", number=21))])
    assert DONE in desk.run(["llm", "-m", "redoubt", "--functions", FUNCTIONS, "Double it."])
    assert desk.steps("/v1/chat/completions") == ["double"]
