"""docs/kubernetes.md agrees with the manifests and with what a node says."""

import os
import re
from pathlib import Path

import pytest

from tests.cloud.manifests.kubectl import ROOT, find, load_all, render
from tests.cloud.manifests.operator_pods import pods
from tests.cloud.manifests.test_schemas import core_errors

GUIDE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def test_its_manifests_follow_their_schemas() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE, flags=re.DOTALL)
    documents = [document for block in blocks for document in load_all(block)]
    assert [each["kind"] for each in documents] == ["Ingress"]
    assert [core_errors(each) for each in documents] == [[]]


def test_its_overlay_gives_every_container_the_image(tmp_path: Path) -> None:
    (text,) = re.findall(r"<<END\n(.*?)END\n", GUIDE, flags=re.DOTALL)
    (overlay,) = load_all(text)
    (folder,) = overlay["resources"]
    digest = "sha256:" + "0" * 64
    target = os.path.relpath(ROOT / "kuberay" / "overlays" / "mine" / folder, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(text.replace(folder, target).replace("sha256:...", digest))
    made = pods(find(render(tmp_path), "RayService"))
    images = {
        each["image"]
        for pod in made.values()
        for each in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
    }
    assert images == {f"registry.example.com/redoubt@{digest}"}


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\bkuberay/[\w./-]+\w", GUIDE))))
def test_what_it_names_is_there(path: str) -> None:
    made_in_the_guide = ("kuberay/overlays/mine", "kuberay/kuberay-operator")
    assert path.startswith(made_in_the_guide) or (ROOT / path).exists()


def test_a_node_says_the_lines_that_it_explains() -> None:
    sources = [*(ROOT / "app" / "launch" / "node").glob("*.py"), ROOT / "app" / "ray_internals.py"]
    said = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    table = GUIDE[GUIDE.index("| the line begins") :]
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:] if line.startswith("|")]
    assert len(rows) >= 8
    for row in rows:
        for part in row.split("..."):
            assert part.strip() in said, row
