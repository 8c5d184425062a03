"""Makes an overlay confidential: `kubectl kustomize OVERLAY | python -m kuberay.confidential OUT --kbs URL ...`.

Writes to OUT: manifests.yaml, to apply; initdata.toml, whose SHA-384 clients demand; resource-policy.rego, for the KBS.
Prints what a client's policy pins. The same input gives the same files.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from app.launch.attested_front import config_digest
from app.launch.config_file import parse_config
from app.settings.knobs import SettingsError
from kuberay.confidential.agent_policy import agent_policy
from kuberay.confidential.initdata import InitdataError, annotation, digest, initdata
from kuberay.confidential.workloads import (
    ANNOTATION,
    CONFIGURATION,
    IMAGE,
    ManifestError,
    configuration,
    key_names,
    pod_templates,
    workloads,
)

RESOURCE_POLICY = Path(__file__).parents[1] / "kbs" / "resource-policy.rego"
IMAGE_KEY = "redoubt/image/key"
NODE_KEYS = ("redoubt/keys/ray-token",)
"""What a cluster's head may ask the KBS for."""


def resource_policy(initdata_digest: str, resources: Sequence[str]) -> str:
    """The KBS' policy, which releases these resources to guests with this initdata (hex)."""
    released = json.dumps({initdata_digest: resources}, indent=2)
    return f"{RESOURCE_POLICY.read_text(encoding='utf-8')}\nreleased := {released}\n"


def complete(documents: Sequence[Any], data: bytes) -> None:
    """Puts the initdata into every pod template, and its image's name where the service says it to clients."""
    for _, template in pod_templates(documents):
        template["metadata"]["annotations"][ANNOTATION] = annotation(data)
        for container in template["spec"]["containers"]:
            variables = [each for each in container.get("env", ()) if each["name"] != IMAGE]
            container["env"] = [*variables, {"name": IMAGE, "value": container["image"]}]


def make(documents: Sequence[Any], out: Path, *, kbs_url: str, kbs_certificate: str, logs: bool) -> dict[str, str]:
    """Writes the three files, changes the documents accordingly, and returns what a client's policy pins.

    Raises ManifestError, InitdataError, SettingsError, OSError.
    """
    pods = workloads(documents)
    text = configuration(documents)
    config = parse_config(text, CONFIGURATION)
    if config.application.args.attestation.evidence != "coco":
        raise ManifestError("attestation.evidence is not coco, so nobody could verify these pods")
    images = sorted({pod.image for pod in pods})
    if len(images) != 1:
        raise ManifestError(f"there are several images: {', '.join(images)}")
    data = initdata(
        policy=agent_policy(pods, logs=logs),
        kbs_url=kbs_url,
        kbs_certificate=kbs_certificate,
        image_repository=images[0].partition("@")[0],
    )
    complete(documents, data)
    keys = [*key_names(text), IMAGE_KEY, *(NODE_KEYS if any(pod.is_ray_node for pod in pods) else ())]
    out.mkdir(parents=True, exist_ok=True)
    (out / "initdata.toml").write_bytes(data)
    (out / "resource-policy.rego").write_text(resource_policy(digest(data), sorted(keys)), encoding="utf-8")
    manifests = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=120)
    (out / "manifests.yaml").write_text(manifests, encoding="utf-8")
    return {"mr_config_id": digest(data), "image": images[0], "config_sha256": config_digest(config)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads rendered manifests from the standard input. Exits with one line if they cannot be confidential."""
    parser = argparse.ArgumentParser(prog="python -m kuberay.confidential", description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--kbs", required=True, metavar="URL", help="where guests find the KBS, with https")
    parser.add_argument("--kbs-certificate", required=True, type=Path, metavar="FILE", help="its certificate, PEM")
    parser.add_argument("--logs", action="store_true", help="let the host read what the containers print")
    options = parser.parse_args(arguments)
    try:
        documents = [document for document in yaml.safe_load_all(sys.stdin) if document]
        certificate = options.kbs_certificate.read_text(encoding="utf-8")
        pinned = make(documents, options.out, kbs_url=options.kbs, kbs_certificate=certificate, logs=options.logs)
    except (ManifestError, InitdataError, SettingsError, OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        sys.exit(f"python -m kuberay.confidential: {error}")
    print("\n".join(f'{name} = "{value}"' for name, value in pinned.items()))
