"""The report's JSON: about, and a result or a reason for each section; written whole after every section.

A report belongs to one model, one machine and one set of options, which its `identity` stands for. Has no user name,
host name or path in it. Does not know what sections measure.
"""

import hashlib
import json
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.places import without_places

FILE_NAME: Final = "report.json"
FORMAT: Final = "redoubt-report-1"


class RecordError(Exception):
    """The folder has another report; the message says what to do."""


class Record:
    """The JSON of one report in its folder."""

    def __init__(
        self, folder: Path, about: dict[str, Any], identity: object, *, forget: Collection[str] | None = None
    ) -> None:
        """Goes on with the report that is there. Raises RecordError for another one's, OSError.

        forget: sections to measure anew; then another one's report is replaced.
        """
        self.path = folder / FILE_NAME
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
        self._report: dict[str, Any] = {"format": FORMAT, "identity": digest, "about": about, "sections": {}}
        if self.path.exists():
            try:
                found = self._sections_so_far(digest)
            except RecordError:
                if forget is None:
                    raise
                found = {}
            self._report["sections"] = {name: entry for name, entry in found.items() if name not in (forget or ())}

    @property
    def report(self) -> dict[str, Any]:
        """The whole report, ready for JSON."""
        return self._report

    @property
    def sections(self) -> dict[str, Any]:
        """Sections by name: `status`, time, and `result` or `reason`."""
        sections: dict[str, Any] = self._report["sections"]
        return sections

    def is_settled(self, name: str) -> bool:
        """Whether a section needs no measuring: it has a result. What could not be measured is tried again."""
        return name in self.sections and bool(self.sections[name]["status"] == "measured")

    def put(self, name: str, status: str, took_s: float, *, result: object = None, reason: str = "") -> None:
        """Records a section, and writes the file."""
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        entry: dict[str, Any] = {"status": status, "measured_at": now, "took_s": round(took_s, 1)}
        self.sections[name] = entry | ({"reason": without_places(reason)} if reason else {"result": result})
        self.write()

    def write(self) -> None:
        """Writes the file whole or not at all."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self._report, indent=1) + "\n", encoding="utf-8")
        partial.replace(self.path)

    def _sections_so_far(self, digest: str) -> dict[str, Any]:
        advice = "give another folder to --out, or --fresh to replace it"
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            format_there, digest_there, sections = found["format"], found["identity"], dict(found["sections"])
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{self.path} is not a report's JSON: {advice}") from error
        if format_there != FORMAT or digest_there != digest:
            raise RecordError(f"{self.path} is of another model, other options or another version of Redoubt: {advice}")
        return sections
