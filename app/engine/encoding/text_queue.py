"""Which texts an encoder computes next: those that somebody waits for before batches, and callers in turn.

Knows lengths, and no tokens.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Job:
    """The texts of one request."""

    lengths: Sequence[int]
    caller: bytes
    is_batch: bool
    begun: int = 0
    """Texts that were taken."""
    done: int = 0
    """Texts that are computed."""
    aborted: bool = False


@dataclass(slots=True)
class _Callers:
    """Jobs by caller; the first caller is the next one."""

    jobs: dict[bytes, deque[Job]] = field(default_factory=dict)
    order: deque[bytes] = field(default_factory=deque)

    def add(self, job: Job) -> None:
        if job.caller not in self.jobs:
            self.jobs[job.caller] = deque()
            self.order.append(job.caller)
        self.jobs[job.caller].append(job)

    def first(self) -> Job | None:
        """The job of the next text, after those that were aborted are gone."""
        while self.order:
            jobs = self.jobs[self.order[0]]
            while jobs and (jobs[0].aborted or jobs[0].begun == len(jobs[0].lengths)):
                jobs.popleft()
            if jobs:
                return jobs[0]
            del self.jobs[self.order.popleft()]
        return None

    def turn(self) -> None:
        self.order.rotate(-1)


class TextQueue:
    """All jobs that wait, in the order in which their texts are computed."""

    def __init__(self, most_texts: int) -> None:
        """most_texts: of one batch."""
        self._most_texts = most_texts
        self._waited_for, self._batches = _Callers(), _Callers()

    def add(self, job: Job) -> None:
        (self._batches if job.is_batch else self._waited_for).add(job)

    def take(self, tokens: int) -> list[tuple[Job, int]]:
        """Takes texts of at most `tokens` together, or one that is longer; each is a job and its number there."""
        taken: list[tuple[Job, int]] = []
        left = tokens
        for callers in (self._waited_for, self._batches):
            while len(taken) < self._most_texts and (job := callers.first()) is not None:
                length = job.lengths[job.begun]
                if taken and length > left:
                    return taken
                taken.append((job, job.begun))
                job.begun += 1
                left -= length
                callers.turn()
            if taken:
                break
        return taken
