"""Sentences about what of a file is not read."""

from dataclasses import dataclass
from typing import Final

HIDDEN_NOTE: Final = "Text that is hidden in it is not read."


@dataclass(slots=True)
class LeftOut:
    """What a reader has come across in a file, and left out."""

    pictures: int = 0
    objects: int = 0
    """Such as sheets that are embedded in a text."""
    charts: int = 0
    hidden: bool = False

    def notes(self) -> list[str]:
        """Returns a sentence for each."""
        notes = [HIDDEN_NOTE] if self.hidden else []
        if self.pictures:
            has = "1 picture in it is" if self.pictures == 1 else f"{self.pictures:,} pictures in it are"
            notes.append(f"{has} not read, nor text in pictures.")
        if self.objects:
            has = "1 embedded object in it is" if self.objects == 1 else f"{self.objects:,} embedded objects in it are"
            notes.append(f"{has} not read.")
        if self.charts:
            has = "1 chart in it is" if self.charts == 1 else f"{self.charts:,} charts in it are"
            notes.append(f"{has} not read.")
        return notes
