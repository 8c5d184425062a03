"""LongBench's metrics for its English and code sets: an answer and a reference -> a score in 0..1.

Source: metrics.py and eval.py of THUDM/LongBench (Bai et al. 2023), whose results these reproduce, peculiarities
included; ROUGE-L as in the `rouge` package 1.0.1, similarity as fuzzywuzzy's ratio. Knows no model.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Final

Metric = Callable[[str, str, Sequence[str]], float]
"""(prediction, reference, the task's classes) -> score."""

_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def qa_f1(prediction: str, reference: str, _: Sequence[str] = ()) -> float:
    """F1 of the words that both have, case, punctuation and articles aside."""
    ours, theirs = _words(prediction), _words(reference)
    common = (Counter(ours) & Counter(theirs)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


def rouge_l(prediction: str, reference: str, _: Sequence[str] = ()) -> float:
    """ROUGE-L's F1 of summaries: different words in the longest common subsequences of all pairs of sentences."""
    ours, theirs = _sentences(prediction), _sentences(reference)
    if not ours or not theirs:
        return 0.0
    common = {word for sentence in theirs for other in ours for word in _common_subsequence(sentence, other)}
    precision = len(common) / len({word for sentence in ours for word in sentence})
    recall = len(common) / len({word for sentence in theirs for word in sentence})
    return 2 * precision * recall / (precision + recall + 1e-8)


def classification(prediction: str, reference: str, classes: Sequence[str]) -> float:
    """1 over the number of classes that the prediction names, if the right one is among them.

    Parts of the right class' name do not count, except one that follows a dropped one directly: the authors' loop
    removes from the list that it walks over.
    """
    named = [name for name in classes if name in prediction]
    at = 0
    while at < len(named):
        if named[at] in reference and named[at] != reference:
            named.remove(named[at])
        at += 1
    return 1 / len(named) if reference in named else 0.0


def retrieval(prediction: str, reference: str, _: Sequence[str] = ()) -> float:
    """The share of the prediction's numbers that are the paragraph's."""
    found = re.search(r"Paragraph (\d+)", reference)
    return _share_of_numbers(prediction, found[1]) if found else 0.0


def count(prediction: str, reference: str, _: Sequence[str] = ()) -> float:
    """The share of the prediction's numbers that are the right one."""
    return _share_of_numbers(prediction, reference)


def code_similarity(prediction: str, reference: str, _: Sequence[str] = ()) -> float:
    """The similarity of the first line that is neither a comment nor a fence, in hundredths."""
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return round(100 * SequenceMatcher(None, line, reference).ratio()) / 100


METRICS: Final[Mapping[str, Metric]] = {
    "narrativeqa": qa_f1, "qasper": qa_f1, "multifieldqa_en": qa_f1, "hotpotqa": qa_f1, "2wikimqa": qa_f1,
    "musique": qa_f1, "gov_report": rouge_l, "qmsum": rouge_l, "multi_news": rouge_l, "trec": classification,
    "triviaqa": qa_f1, "samsum": rouge_l, "passage_count": count, "passage_retrieval_en": retrieval,
    "lcc": code_similarity, "repobench-p": code_similarity,
}  # fmt: skip
"""Metrics by name: the 14 English sets, and the two of code."""
FIRST_LINE_ONLY: Final = frozenset({"trec", "triviaqa", "samsum"})
"""Sets where only the answer's first line counts, because small models continue with another example."""


def long_score(name: str, prediction: str, references: Sequence[str], classes: Sequence[str]) -> float:
    """The best score of a prediction over the references, in 0..1."""
    if name in FIRST_LINE_ONLY:
        prediction = prediction.lstrip("\n").split("\n")[0]
    return max((METRICS[name](prediction, reference, classes) for reference in references), default=0.0)


def _words(text: str) -> list[str]:
    bare = text.lower().translate(_PUNCTUATION)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _sentences(text: str) -> list[list[str]]:
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _common_subsequence(x: Sequence[str], y: Sequence[str]) -> list[str]:
    """A longest common subsequence; of several, the one found by going back from the ends, y first."""
    lengths = [[0] * (len(y) + 1)]
    for word in x:
        before, row = lengths[-1], [0]
        for j, other in enumerate(y):
            row.append(before[j] + 1 if word == other else max(before[j + 1], row[j]))
        lengths.append(row)
    found, i, j = [], len(x), len(y)
    while i and j:
        if x[i - 1] == y[j - 1]:
            i, j = i - 1, j - 1
            found.append(x[i])
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found


def _share_of_numbers(prediction: str, wanted: str) -> float:
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(wanted) / len(numbers) if numbers else 0.0
