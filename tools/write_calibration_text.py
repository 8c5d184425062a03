"""Writes the generated part of the default calibration text: the embedded model continues given openings.

The same model, seed and openings give the same text on every machine, since the engine's results do not depend on
batches or tiers. Documents are separated by a form feed; a chat is written as alternating turns, each after a line
`@user` or `@assistant`, so that calibration can put it into any model's own template.

    python -m tools.write_calibration_text models/smollm2-135m-instruct quant/calibration/generated.txt
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from kernels import _native

TOKENS = 448
SLOTS = 48
_SUBJECTS = (
    "the Roman aqueducts", "bread and yeast", "a lighthouse keeper", "photosynthesis", "the city of Lisbon",
    "prime numbers", "jazz in the 1950s", "volcanoes", "the printing press", "honey bees", "a chess tournament",
    "steam engines", "the Danube", "medieval castles", "vaccines", "the moons of Jupiter", "a village market",
    "railway timetables", "coral reefs", "the French Revolution", "batteries", "a detective in the rain",
    "football", "the violin", "tax law", "glaciers", "an old sailor", "computer networks", "the heart",
    "opera", "tea", "a lost letter", "earthquakes", "the Silk Road", "bicycles", "democracy in Athens", "owls",
    "the stock market", "concrete bridges", "a film director", "the periodic table", "refugees", "silver mining",
    "sleep", "the Antarctic", "road safety", "Shakespeare's comedies", "a battle at sea", "insulin", "pottery",
)  # fmt: skip
_OPENINGS = (
    "{} is known for", "The history of {} begins", "In a recent study of {}, researchers",
    "Once, long before anyone spoke of {},", "Here is what you should know about {}:\n\n1.", "# {}\n\n",
    "\"I never cared for {},\" she said,", "Abstract. We examine {}", "Dear editor, your article on {}",
    "According to the report, {}",
)  # fmt: skip
_OTHERS = (
    "def ", "import numpy as np\n\n", "#include <stdio.h>\n", "SELECT ", "<!DOCTYPE html>\n", "function ", "class ",
    "{\"name\": ", "Question: What is 17 times 24?\nAnswer:", "Theorem. Let", "Ingredients:\n- ", "Chapter 1\n\n",
    "Monday, 3 March. ", "Minutes of the meeting", "TERMS AND CONDITIONS\n\n", "Scene I. A street.\n\n",
    "Breaking news: ", "The population of", "Table 1. ", "Il était une fois", "Es war einmal", "Había una vez",
    "C'era una volta", "In 1843,", "On the northern coast,", "He scored", "The album was", "The species",
    "The ship was", "During the war,",
)  # fmt: skip
_INSTRUCTIONS = (
    "Explain {} to a child.", "Write a short story about {}.", "What are three facts about {}?",
    "Write an email to a friend about {}.", "Summarize what you know of {} in two paragraphs.",
    "Write a Python function that has to do with {}.", "Is there a connection between {} and money?",
    "Make a list of ten questions about {}.", "Rewrite this politely: I hate {}!",
    "Give me a plan to learn about {} in a week.",
)  # fmt: skip


def openings() -> list[tuple[str, str]]:
    """(kind, text) of every piece to be written: documents, and chats' first messages."""
    pairs = list(itertools.product(range(len(_OPENINGS)), range(len(_SUBJECTS))))
    chosen = [(a, b) for a, b in pairs if (3 * a + 7 * b) % 4 == 0]
    documents = [_OPENINGS[a].format(_SUBJECTS[b]) for a, b in chosen]
    chats = [_INSTRUCTIONS[a].format(_SUBJECTS[b]) for a, b in pairs if (3 * a + 7 * b) % 5 == 0]
    documents = [text[0].upper() + text[1:] for text in documents] + list(_OTHERS)
    return [("document", text) for text in documents] + [("chat", text) for text in chats]


def generate(folder: Path, prompts: list[list[int]], stops: set[int]) -> list[list[int]]:
    """Continues every prompt by up to TOKENS tokens drawn at temperature 1."""
    pages = -(-(TOKENS + 64) // _native.PAGE_TOKENS)
    model = _native.Model(
        str(folder), threads=2, kv_pages=SLOTS * pages, max_sequences=SLOTS, max_step_tokens=1024,
        max_context_tokens=pages * _native.PAGE_TOKENS,
    )  # fmt: skip
    model.page_table[:] = np.arange(SLOTS * pages).reshape(SLOTS, pages)
    waiting = list(enumerate(prompts))
    results: list[list[int]] = [[] for _ in prompts]
    running: dict[int, tuple[int, _native.Sampler, list[int], int]] = {}  # slot -> number, sampler, new tokens, past
    while waiting or running:
        for slot in range(SLOTS):
            if slot not in running and waiting:
                number, prompt = waiting.pop(0)
                sampler = _native.Sampler(vocab_size=model.vocab_size, prompt=prompt, top_p=0.98, seed=1000 + number)
                running[slot] = (number, sampler, prompt, 0)
        slots = sorted(running)
        new = [running[slot][2] for slot in slots]
        past = [running[slot][3] for slot in slots]
        drawn = model.step(
            np.concatenate(new).astype(np.int32),
            np.concatenate([np.arange(p, p + len(n)) for p, n in zip(past, new, strict=True)]).astype(np.int32),
            np.array(slots, np.int32),
            np.array([len(n) for n in new], np.int32),
            np.array(past, np.int32),
            [running[slot][1] for slot in slots],
        )
        for slot, token, fresh, before in zip(slots, drawn, new, past, strict=True):
            number, sampler, _, _ = running[slot]
            if int(token) in stops or len(results[number]) >= TOKENS:
                del running[slot]
                continue
            results[number].append(int(token))
            running[slot] = (number, sampler, [int(token)], before + len(fresh))
    return results


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    pieces = openings()
    prompts = []
    for kind, text in pieces:
        whole = text if kind == "document" else f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        prompts.append(tokenizer.encode(whole, add_special_tokens=False).ids)
    answers = generate(arguments.model, prompts, {0, 1, 2})
    texts = []
    for (kind, text), answer in zip(pieces, answers, strict=True):
        written = tokenizer.decode(answer, skip_special_tokens=True)
        if len(written) >= 80:
            texts.append(text + written if kind == "document" else f"@user\n{text}\n@assistant\n{written}")
    arguments.out.write_text("\n\f\n".join(texts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
