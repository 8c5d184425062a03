"""The snippets of README.md, run as they are printed, by the program that README names for them."""

import json
import re
import subprocess
from pathlib import Path

from tests.service.running import ROOT, RunningService

README = (ROOT / "README.md").read_text(encoding="utf-8")


def snippets(language: str, service: RunningService) -> list[str]:
    """Code blocks that ask the service, with its address and its model in the place of those of `make serve`."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    asking = [block for block in found if "http://127.0.0.1:8000" in block]
    return [
        block.replace("http://127.0.0.1:8000", service.url).replace("smollm2-135m-instruct", service.model)
        for block in asking
    ]


def test_curl(service: RunningService) -> None:
    (command,) = snippets("sh", service)
    answer = subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=300).stdout
    assert "Paris" in json.loads(answer)["choices"][0]["message"]["content"]


def test_python(service: RunningService, tmp_path: Path) -> None:
    (program,) = snippets("python", service)
    (interpreter, name) = re.findall(r"`(\S*python\S*) (\w+\.py)`", README)[0]
    file = tmp_path / name
    file.write_text(program, encoding="utf-8")
    told = subprocess.run([ROOT / interpreter, file], capture_output=True, text=True, check=True, timeout=300).stdout
    assert "blue" in told.lower()
