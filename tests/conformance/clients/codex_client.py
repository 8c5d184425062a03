"""Codex CLI: tasks in several steps, over `/v1/responses`."""

import json
from typing import Any

from agents import CONTENT, DONE, TASK, Desk, call

PATCH = f"*** Begin Patch\n*** Add File: greeting.txt\n+{CONTENT}\n*** End Patch\n"
CONFIG = """check_for_update_on_startup = false
{printed}
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
"""


def codex(desk: Desk, *, knows_patches: bool = False) -> str:
    """What Codex says at the end of the task.

    knows_patches: whether Codex is told that the model knows `apply_patch`, in a catalog as its own.
    """
    config = desk.home / ".codex"
    config.mkdir()
    settings = CONFIG.format(printed=desk.printed("Codex CLI"))
    if knows_patches:
        catalog = json.loads(desk.run(["codex", "debug", "models"]))
        known = next(model for model in catalog["models"] if model["apply_patch_tool_type"] == "freeform")
        own = known | {
            "slug": "tiny",
            "use_responses_lite": False,
            "tool_mode": "direct",
            "supports_search_tool": False,
        }
        (config / "models.json").write_text(json.dumps({"models": [own]}))
        settings = f'model_catalog_json = "{config / "models.json"}"\n{settings}'
    (config / "config.toml").write_text(settings)
    last = desk.home / "last"
    command = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    desk.run([*command, "--output-last-message", str(last), TASK])
    return last.read_text().strip()


def items(desk: Desk, kind: str) -> list[dict[str, Any]]:
    """Of the last request."""
    desk.goes_on()
    return [item for item in desk.requests("/v1/responses")[-1]["input"] if item.get("type") == kind]


def test_writes_a_file_with_a_command(desk: Desk) -> None:
    command = f"printf '{CONTENT}' > greeting.txt && echo written-it"
    desk.script([("\nwritten-it", DONE), (TASK, call("exec_command", cmd=command))])
    assert codex(desk) == DONE
    assert (desk.folder / "greeting.txt").read_text() == CONTENT
    assert [item["name"] for item in items(desk, "function_call")] == ["exec_command"]


def test_writes_a_file_with_a_patch(desk: Desk) -> None:
    desk.script([("Success. Updated", f"{DONE}"), (TASK, f"I patch it.\n{call('apply_patch', input=PATCH)}")])
    assert codex(desk, knows_patches=True) == DONE
    assert (desk.folder / "greeting.txt").read_text() == f"{CONTENT}\n"
    assert [item["input"] for item in items(desk, "custom_tool_call")] == [PATCH]
