"""The confidential overlays as a user makes them: rendered with an image by its digest, and completed."""

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from kuberay.confidential.command import make
from tests.cloud.authority import make_authority
from tests.cloud.manifests.kubectl import ROOT, Document, find, load_all, render
from tests.cloud.manifests.operator_pods import pods

OVERLAYS = ("confidential-single", "confidential")
IMAGE = f"registry.example.com:5000/team/redoubt@sha256:{'a' * 64}"
KBS = "https://kbs.example.com:8080"


def rendered(overlay: str, image: str = IMAGE) -> list[Document]:
    """What kustomize makes of a user's overlay, which names an image by its digest, or else by a tag."""
    name, _, digest = image.partition("@")
    tag = f"digest: '{digest}'" if digest else "newTag: '1.0'"
    with TemporaryDirectory(prefix="redoubt-overlay-") as folder:
        target = os.path.relpath(ROOT / "kuberay" / "overlays" / overlay, folder)
        text = f"resources: [{target}]\nimages: [{{name: redoubt, newName: '{name}', {tag}}}]\n"
        (Path(folder) / "kustomization.yaml").write_text(text)
        return render(Path(folder))


@cache
def certificate() -> str:
    """A certificate (PEM) that a KBS could show."""
    with TemporaryDirectory(prefix="redoubt-kbs-") as folder:
        return (make_authority(Path(folder) / "ca") / "ca.crt").read_text()


class Made:
    """An overlay's three files, and what a client's policy pins."""

    def __init__(self, documents: list[Document], *, logs: bool = False) -> None:
        with TemporaryDirectory(prefix="redoubt-confidential-") as folder:
            out = Path(folder)
            self.pinned = make(documents, out, kbs_url=KBS, kbs_certificate=certificate(), logs=logs)
            self.initdata = (out / "initdata.toml").read_bytes()
            self.resource_policy = (out / "resource-policy.rego").read_text()
            self.documents: list[Document] = load_all((out / "manifests.yaml").read_text())

    def pods(self) -> dict[str, Document]:
        """The pods of these manifests, without KubeRay's wait-gcs-ready, which its operator is told to leave out."""
        if any(each["kind"] == "RayService" for each in self.documents):
            made = pods(find(self.documents, "RayService"))
            for pod in made.values():
                pod["spec"].pop("initContainers", None)
            return made
        deployment = find(self.documents, "Deployment")
        template = deployment["spec"]["template"]
        metadata = {**template["metadata"], "namespace": deployment["metadata"]["namespace"], "name": "redoubt-0"}
        return {"service": {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}}


@cache
def made(overlay: str) -> Made:
    """The overlay, completed. Do not change it."""
    return Made(rendered(overlay))
