"""Writes a policy file from a verdict: what one machine says of itself becomes what is demanded from then on.

That is trust on first use. What you can compute yourself (initdata, image, models' digests) you should compare by hand.
"""

import datetime
import json

from redoubt_verify.policy import MEASUREMENTS, Policy
from redoubt_verify.verify import Verdict

_PINNABLE_LATER = ("min_tcb_eval_data_number", "collateral_max_age", "platforms", "image", "models", "config_sha256")


def open_policy(insecure_root: bytes | None) -> Policy:
    """Demands a genuine, up-to-date platform and nothing else: for reading evidence, not for trusting a service."""
    return Policy(
        expires=datetime.datetime.max.replace(tzinfo=datetime.UTC),
        measurements={},
        tcb_statuses=frozenset({"UpToDate", "SWHardeningNeeded"}),
        advisories_allowed=None,
        min_tcb_eval_data_number=None,
        collateral_max_age_s=None,
        platforms=None,
        image=None,
        models=None,
        config_sha256=None,
        unpinned=(*MEASUREMENTS, *_PINNABLE_LATER, "advisories_allowed", "event_log"),
        reverify_after_s=3600,
        insecure_root=insecure_root,
    )


def build(verdict: Verdict, *, initdata_sha384: str | None, days: int, insecure_root: str | None, now: float) -> str:
    """The text of a policy. initdata_sha384: hex, for MR_CONFIG_ID, instead of what the verdict says."""
    expires = datetime.datetime.fromtimestamp(now + days * 86400, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    measurements = dict(verdict.measurements)
    if initdata_sha384:
        measurements["mr_config_id"] = initdata_sha384
    lines = [
        "# Taken from one machine's evidence. Compare with your own build before you rely on it.",
        f"expires = {expires}",
        'reverify_after = "1h"',
        f"unpinned = {json.dumps([] if verdict.image else ['image'])}",
        "",
        *(f'{name} = "{value}"' for name, value in measurements.items()),
        "",
        f"tcb_statuses = {json.dumps([verdict.tcb_status])}",
        f"advisories_allowed = {json.dumps(list(verdict.advisories))}",
        f"min_tcb_eval_data_number = {verdict.tcb_eval_data_number}",
        'collateral_max_age = "30d"',
        "# Add the PPIDs of further machines.",
        f'platforms = ["{verdict.platform}"]',
        "",
        *([f"image = {json.dumps(verdict.image)}"] if verdict.image else []),
        f'config_sha256 = "{verdict.config_sha256}"',
    ]
    if insecure_root:
        lines += [f'insecure_root = """\n{insecure_root.strip()}\n"""']
    for name, digest in verdict.models:
        lines += ["", "[[models]]", f"name = {json.dumps(name)}", f'sha256 = "{digest}"']
    return "\n".join(lines) + "\n"
