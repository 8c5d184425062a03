"""The rendered manifests, and KubeRay's CRDs where they are."""

import os
from pathlib import Path

import pytest

from tests.cloud.manifests.kubectl import KUBECTL, ROOT, Document, find, load_all, render

SERVICES = ("base", *(f"overlays/{name}" for name in ("dev", "numa", "autoscaling", "tls", "production")))
CRDS = ROOT.parent / "shared" / "data" / "kuberay-crds"
"""KubeRay 1.7.0's ray-operator/config/crd/bases. They are not ours to keep, so a checkout alone does not have them."""


@pytest.fixture(autouse=True, scope="session")
def _kubectl() -> None:
    if not KUBECTL.exists():
        reason = f"{KUBECTL} is missing: run `make kubectl`"
        if os.environ.get("REDOUBT_TEST_ALL"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(params=SERVICES)
def documents(request: pytest.FixtureRequest) -> list[Document]:
    """All that one overlay applies."""
    return render(ROOT / "kuberay" / request.param)


@pytest.fixture
def service(documents: list[Document]) -> Document:
    """The RayService of one overlay."""
    return find(documents, "RayService")


@pytest.fixture
def base() -> Document:
    """The RayService of the base, for examples of what is wrong."""
    return find(render(ROOT / "kuberay" / "base"), "RayService")


@pytest.fixture
def full() -> Document:
    """The RayService of all components together, for examples of what is wrong."""
    return find(render(ROOT / "kuberay" / "overlays" / "production"), "RayService")


@pytest.fixture(scope="session")
def crd() -> Document:
    """KubeRay's CustomResourceDefinition of RayService."""
    path: Path = CRDS / "ray.io_rayservices.yaml"
    if not path.exists():
        pytest.skip(f"KubeRay's CRDs are not at {CRDS}")
    (loaded,) = load_all(path.read_text())
    return dict(loaded)
