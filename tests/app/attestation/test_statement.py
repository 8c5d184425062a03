import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

from app.attestation.statement import Facts, model_digest, report_data, statement

FACTS = Facts(
    tls_spki_sha256="ab" * 32,
    image="redoubt@sha256:" + "0" * 64,
    config_sha256="cd" * 32,
    models={"small": "11" * 32, "large": "22" * 32},
    cluster_ca_spki_sha256=None,
)
NONCE = "0123456789abcdef" * 4


def test_it_says_everything_and_the_nonce() -> None:
    said = json.loads(statement(FACTS, NONCE))
    assert said == {
        "v": 1,
        "nonce": NONCE,
        "tls_spki_sha256": "ab" * 32,
        "hpke": None,
        "image": FACTS.image,
        "config_sha256": "cd" * 32,
        "models": [{"name": "large", "sha256": "22" * 32}, {"name": "small", "sha256": "11" * 32}],
        "cluster_ca_spki_sha256": None,
    }


def test_its_bytes_are_always_the_same() -> None:
    other_order = replace(FACTS, models=dict(reversed([*FACTS.models.items()])))
    assert statement(FACTS, NONCE) == statement(other_order, NONCE)


def test_the_report_data_is_the_prefixed_digest() -> None:
    expected = hashlib.sha512(b"redoubt/attestation/v1\0" + b"said").digest()
    assert report_data(b"said") == expected
    assert len(expected) == 64


def test_a_models_digest_can_be_made_by_hand(tmp_path: Path) -> None:
    for name, text in (("model.safetensors", "weights"), ("config.json", "{}"), ("B.json", "upper case first")):
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    by_hand = subprocess.run(
        "find . -maxdepth 1 -type f -printf '%f\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d' ' -f1",
        shell=True, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert model_digest(tmp_path) == by_hand.stdout.strip()
    before = model_digest(tmp_path)
    (tmp_path / "model.safetensors").write_text("other weights")
    assert model_digest(tmp_path) != before
