"""docs/kubernetes.md and docs/confidential.md agree with the manifests and with what a node says."""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.cloud.manifests.confidential import Made
from tests.cloud.manifests.kubectl import ROOT, Document, find, load_all, render
from tests.cloud.manifests.network import Peer, connects
from tests.cloud.manifests.operator_pods import pods
from tests.cloud.manifests.rego import answer
from tests.cloud.manifests.test_resource_policy import RULE, asked, claims
from tests.cloud.manifests.test_schemas import core_errors

GUIDE, CONFIDENTIAL = ((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("kubernetes", "confidential"))
DIGEST = "sha256:" + "0" * 64


def test_its_manifests_follow_their_schemas() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", GUIDE, flags=re.DOTALL)
    documents = [document for block in blocks for document in load_all(block)]
    assert [each["kind"] for each in documents] == ["Ingress"]
    assert [core_errors(each) for each in documents] == [[]]


def overlay_of(guide: str, folder: Path) -> list[Document]:
    """What the guide's own overlay renders to, written to an empty folder."""
    (text,) = re.findall(r"<<END\n(.*?)END\n", guide, flags=re.DOTALL)
    (overlay,) = load_all(text)
    (resource,) = overlay["resources"]
    target = os.path.relpath(ROOT / "kuberay" / "overlays" / "mine" / resource, folder)
    (folder / "kustomization.yaml").write_text(text.replace(resource, target).replace("sha256:...", DIGEST))
    return render(folder)


def test_its_overlay_gives_every_container_the_image(tmp_path: Path) -> None:
    made = pods(find(overlay_of(GUIDE, tmp_path), "RayService"))
    images = {
        each["image"]
        for pod in made.values()
        for each in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
    }
    assert images == {f"registry.example.com/redoubt@{DIGEST}"}


def test_users_in_a_postgres_and_an_own_model(tmp_path: Path) -> None:
    """One line names the model, and with the component every pod reaches Postgres and has both secrets' files."""
    kuberay = shutil.copytree(ROOT / "kuberay", tmp_path / "kuberay", ignore=shutil.ignore_patterns("image"))
    serve = kuberay / "overlays" / "dev" / "serve.yaml"
    serve.write_text(serve.read_text().replace("/models/smollm2-135m-instruct", "/models/mine"))
    mine = kuberay / "overlays" / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text("resources: [../dev]\ncomponents: [../../components/postgres]\n")
    documents = render(mine)
    database = Peer(address="10.9.8.7")
    for pod in pods(find(documents, "RayService")).values():
        container = pod["spec"]["containers"][0]
        variables = {each["name"]: each.get("value") for each in container["env"]}
        assert variables["PGPASSFILE"] == "/accounts/pgpass"
        assert variables.get("REDOUBT_NODE_MODELS", "/models/mine") == "/models/mine"
        assert {"name": "accounts", "mountPath": "/accounts", "readOnly": True} in container["volumeMounts"]
        head_or_worker = Peer("redoubt", pod["metadata"]["labels"])
        policies = [each for each in documents if each["kind"] == "NetworkPolicy"]
        assert connects(policies, head_or_worker, database, 5432)
        assert not connects(
            [each for each in policies if each["metadata"]["name"] != "postgres"], head_or_worker, database, 5432
        )


@pytest.mark.parametrize("components", [["postgres", "tls"], ["tls", "postgres"]])
def test_users_in_a_postgres_and_tls_between_pods(components: list[str], tmp_path: Path) -> None:
    """Both bring an init container, and each pod has both, whichever comes first; KubeRay's own is the last."""
    kuberay = os.path.relpath(ROOT / "kuberay", tmp_path)
    added = ", ".join(f"{kuberay}/components/{name}" for name in components)
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [{kuberay}/base]\ncomponents: [{added}]\nimages: [{{name: redoubt, newName: mine, newTag: v1}}]\n"
    )
    ours = [{"postgres": "accounts", "tls": "certificate"}[name] for name in components]
    made = pods(find(render(tmp_path), "RayService"))
    inits = {name: pod["spec"]["initContainers"] for name, pod in made.items()}
    names = {name: [each["name"] for each in containers] for name, containers in inits.items()}
    assert names == {"head": ours, "numa-node": [*ours, "wait-gcs-ready"]}
    assert {each["image"] for containers in inits.values() for each in containers} == {"mine:v1"}
    (keys,) = (each["secret"] for each in made["numa-node"]["spec"]["volumes"] if each["name"] == "keys")
    assert keys["optional"], "users have keys of their own"


def test_kinds_storage_class_takes_the_claim_of_dev() -> None:
    claim = find(render(ROOT / "kuberay" / "overlays" / "dev-volume"), "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert core_errors(claim) == []


def test_the_confidential_overlay_can_be_made(tmp_path: Path) -> None:
    """With the options of the guide's command, and the keys that it gives the KBS are those that are released."""
    (command,) = re.findall(r"python -m kuberay\.confidential (.*?)\n```", CONFIDENTIAL, flags=re.DOTALL)
    assert re.findall(r"--[a-z-]+", command) == ["--kbs", "--kbs-certificate"]
    of = Made(overlay_of(CONFIDENTIAL, tmp_path))
    assert of.pinned["image"] == f"registry.example.com/team/redoubt@{DIGEST}"
    given = re.findall(r"set-resource --path (\S+)", CONFIDENTIAL)
    assert len(given) == 2
    for path in given:
        assert answer(of.resource_policy, RULE, claims(of.pinned["mr_config_id"]), asked(path)), path


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\bkuberay/[\w./-]+\w", GUIDE + CONFIDENTIAL))))
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
