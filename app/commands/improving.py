"""Converts a model of the store anew by the best method, and keeps the result if it is closer to the model.

A program of its own, because it runs for hours on what processors are idle (`app.launch.idle_process`): its argument is
the model's name, its output one JSON object (`Improvement`). Interrupted, it goes on with the next call.
"""

import json
import math
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import typer

from app.commands.one_line import one_line_errors
from app.commands.pulling import Conversion, converted_into_store, tell
from app.launch.reverse_proxy import end_with_parent
from app.model_folder import ChatModelError
from app.models.names import read_name
from app.models.store import Entry, Store, StoreError, not_in_the_store
from quant.calibration.log_probabilities import log_probabilities
from quant.calibration.text import calibration_windows, divided_text
from quant.errors import QuantError
from quant.packed.native_model import NativeModel
from quant.packed.packed_file import is_packed_model

METHOD: Final = "tuned"
_WINDOWS: Final = 16
_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Improvement:
    """What came of it: perplexities on a text that no code was chosen by."""

    before: str
    """The folder of the model as it was."""
    after: str | None
    """The folder of the better one; None: it was not better, and is gone."""
    perplexity_before: float
    perplexity_after: float

    def told(self, name: str) -> str:
        """A sentence for the user."""
        before, after = self.perplexity_before, self.perplexity_after
        change = f"perplexity {before:.2f} before, {after:.2f} after, on a text held back"
        if self.after is None:
            return f"{name} stays as it was: calibrated anew it was not better ({change})."
        return f"{name} is improved: {change}."


def improve(name: str) -> Improvement:
    """Does the work. Raises QuantError, ChatModelError, OSError; KeyboardInterrupt with what is left to do."""
    entry = improvable(name)
    before = entry.models()[0]
    calibrating, held_back = divided_text()
    text, held = entry.folder / "calibrating.txt", entry.folder / "held-back.txt"
    text.write_text(calibrating, encoding="utf-8")
    held.write_text(held_back, encoding="utf-8")
    try:
        options = Conversion(method=METHOD, calibration_text=text)
        after = entry.place(options.key)
        if before == after:
            raise StoreError(f"{name}: is improved already; `redoubt models update {name}` looks for a newer revision")
        if not is_packed_model(after):
            source = entry.record.repository
            if not entry.is_local:
                source += f"@{entry.record.commit}" + (f":{entry.record.gguf}" if entry.record.gguf else "")
            converted_into_store(source, options)
        scores = perplexity(before, held), perplexity(after, held)
    finally:
        for path in (text, held):
            path.unlink()
    if scores[1] < scores[0]:
        return Improvement(str(before), str(after), *scores)
    shutil.rmtree(after.parent)
    return Improvement(str(before), None, *scores)


def improvable(name: str) -> Entry:
    """The entry of the store that a name means. Raises StoreError if there is none whose source is known."""
    meant = read_name(name)
    if isinstance(meant, Path) and is_packed_model(meant):
        raise StoreError(f"{name}: is a converted model, and not what it was made from: name its source instead")
    found = Store.default().find(meant)
    if not found:
        raise not_in_the_store(name)
    return found[0]


def perplexity(model: Path, text: Path) -> float:
    """Of a converted model, over windows of a text. Raises QuantError, ValueError, OSError."""
    windows = calibration_windows(model, text, windows=_WINDOWS, tokens=_TOKENS)
    losses: list[float] = []
    with NativeModel(model, context_tokens=_TOKENS) as native:
        for ids in windows:
            for begin, logits in native.logits(ids[:-1].tolist()):
                losses += (-log_probabilities(logits, ids[begin + 1 : begin + 1 + len(logits)])).tolist()
    return math.exp(sum(losses) / len(losses))


def main(arguments: Sequence[str]) -> None:
    """Prints the Improvement of one name as JSON."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell starts in the background
    try:
        with one_line_errors(QuantError, ChatModelError, OSError):
            improvement = improve(arguments[0])
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except KeyboardInterrupt as interrupt:
        tell(f"redoubt: {str(interrupt) or 'interrupted; the same command goes on'}")
        sys.exit(130)
    print(json.dumps({"told": improvement.told(arguments[0]), **asdict(improvement)}))


if __name__ == "__main__":
    main(sys.argv[1:])
