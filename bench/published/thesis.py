"""The tables of the thesis (Cao Zehua, Southeast University, 2024) with ours beside: Llama-2 on a Xeon 8468.

Its pictures have no numbers in the text, so only what the text says of them is here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.published.results import NONE, File, Json, Results, mib, newest_of_each_machine, seconds, spread, table
from bench.report.published import FIRST_TOKEN_S, NEXT_TOKEN_S, PROMPT_TOKENS

NAMES: Final = {
    "torch-fp32": "transformers, fp32", "torch-bf16": "transformers, bf16",
    **{name: name for name in ("fp32", "fp16", "bf16", "int8", "sym_int4", "asym_int4")},
}  # fmt: skip
MEMORY_MB: Final = {
    "fp32": (25833.02, 49731.59), "sym_int4": (3976.43, 7217.72), "asym_int4": (4173.34, 7600.73),
    "int8": (7323.84, 13728.85),
}  # fmt: skip
LOAD_S: Final = {"fp32": (30.1276, 64.7866), "sym_int4": (1.68288, 9.57686), "int8": (34.3865, 73.7418)}
SHAPES: Final = ("original-1.1b", "original-7b", "original-7b-8-layers", "original-13b", "original-13b-4-layers")
BASES: Final = ("torch-fp32", "torch-bf16")
CONCURRENCY: Final[Mapping[str, tuple[str, Any]]] = {
    "tokens/s": ("tokens_per_s", "{:.0f}".format), "next token p50": ("next_token_p50_s", seconds),
    "first token p50": ("first_token_p50_s", seconds),
}  # fmt: skip
"""By its title: the figure of `redoubt bench loads concurrency`, and how it is shown."""
UNMEASURED: Final = ["Not measured yet."]
Lines = list[str]


def summary(results: Results) -> Lines:
    """What its abstract promises, in one table: sym_int4 over the original."""
    files = [
        file
        for file in originals(results)
        if not file.result.get("layers") and any("inputs" in file.result["types"].get(base, {}) for base in BASES)
    ]
    rows = [
        ["memory saved", "about 75 % (85 % by table 4.1)", *(_saved(file, "resident_bytes") for file in files)],
        ["load time saved", "85 % (95 % for 7B by figure 4-1)", *(_saved(file, "load_s") for file in files)],
        ["response time over the original's", "about 0.5", *(_responses(file) for file in files)],
        ["extra latency of TDX", "up to 9.5 %", *([NONE] * len(files))],
    ]
    titles = [f"{shape_title(file)}: over transformers in fp32; in bf16" for file in files]
    return table(["sym_int4", "published", *titles], rows)


def _saved(file: File, figure: str) -> str:
    types = file.result["types"]
    ours = types.get("sym_int4", {}).get(figure)
    theirs = [types.get(base, {}).get(figure) for base in BASES]
    return "; ".join(f"{1 - ours / each:.1%}" if ours and each else NONE for each in theirs)


def _responses(file: File) -> str:
    cells = []
    for base in BASES:
        ratios = [ratio for _, _, ratio in _ratios(file.result["types"], base)]
        low, high = f"{min(ratios, default=0):.2f}", f"{max(ratios, default=0):.2f}"
        cells.append(NONE if not ratios else low if low == high else f"{low} to {high}")
    return "; ".join(cells)


def _ratios(types: Json, base: str) -> list[tuple[str, str, float]]:
    """Input, output, and the response time of sym_int4 over the base's, where both have one."""
    if "inputs" not in types.get("sym_int4", {}) or "inputs" not in types.get(base, {}):
        return []
    return [
        (given, made, ours / theirs)
        for given, times in types["sym_int4"]["inputs"].items()
        for made, ours in times["response_s"].items()
        if (theirs := types[base]["inputs"][given]["response_s"].get(made))
    ]


def memory(results: Results) -> Lines:
    return _by_type(
        results, "resident_bytes", mib, {name: [f"{x:,.0f}" for x in both] for name, both in MEMORY_MB.items()}
    )


def load(results: Results) -> Lines:
    return _by_type(results, "load_s", seconds, {name: [f"{x:.2f} s" for x in both] for name, both in LOAD_S.items()})


def _by_type(results: Results, figure: str, shown: Any, published: dict[str, list[str]]) -> Lines:
    files = originals(results)
    rows = []
    for name, title in NAMES.items():
        cells = [_cell(file, name, figure, shown) for file in files]
        # transformers' fp32 is what the thesis started from.
        theirs = published.get("fp32" if name == "torch-fp32" else name, [NONE, NONE]) if name != "fp32" else [NONE] * 2
        if any(cell != NONE for cell in cells) or theirs[0] != NONE:
            rows.append([title, *theirs, *cells])
    return table(["weights", "published, 7B", "published, 13B", *map(shape_title, files)], rows)


def originals(results: Results) -> list[File]:
    """Each shape's newest result of each machine."""
    return [file for name in SHAPES for file in newest_of_each_machine(results.of(name))]


def shape_title(file: File) -> str:
    shape = str(file.result["shape"]).rpartition("-")[2].upper()
    layers = file.result.get("layers")
    return f"{shape}{f', {layers} layers only' if layers else ''} ({file.machine})"


def _cell(file: File, name: str, figure: str, shown: Any) -> str:
    one = file.result["types"].get(name, {})
    return shown(one[figure]) if figure in one else NONE


def response(results: Results) -> Lines:
    """Times by input and output, and what is over what."""
    lines: Lines = []
    for file in originals(results):
        types = {each: one for each, one in file.result["types"].items() if "inputs" in one}
        names = [each for each in NAMES if each in types]
        rows = []
        for given in map(str, file.result["inputs"]):
            for made in map(str, file.result["outputs"]):
                times = {each: types[each]["inputs"][given]["response_s"].get(made) for each in names}
                if any(times.values()):
                    over = [_over(times.get("sym_int4"), times.get(base)) for base in BASES]
                    rows.append([f"{given} in, {made} out", *(_time(times[each]) for each in names), *over])
        head = [
            shape_title(file),
            *(NAMES[each] for each in names),
            "sym_int4 over transformers' fp32",
            "over its bf16",
        ]
        lines += ["", *table(head, rows)]
    return lines[1:] or UNMEASURED


def _time(value: float | None) -> str:
    return NONE if value is None else seconds(value)


def _over(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.2f}" if ours and theirs else NONE


def tokens(results: Results) -> Lines:
    """First and next token after 512 and 1,024 tokens, or the longest prompt up to there."""
    given = [
        (file, str(prompt))
        for file in originals(results)
        for prompt in file.result["inputs"]
        if prompt in (512, max(n for n in file.result["inputs"] if n <= PROMPT_TOKENS))
    ]
    rows = []
    for name, title in NAMES.items():
        theirs = f"{seconds(FIRST_TOKEN_S)}, {seconds(NEXT_TOKEN_S)}" if name == "sym_int4" else NONE
        cells = []
        for file, prompt in given:
            times = file.result["types"].get(name, {}).get("inputs", {}).get(prompt)
            cells.append(f"{seconds(times['first_token_s'])}, {seconds(times['next_token_s'])}" if times else NONE)
        if theirs != NONE or any(cell != NONE for cell in cells):
            rows.append([title, theirs, *cells])
    titles = [f"{shape_title(file)}, {int(prompt):,} in" for file, prompt in given]
    return table(["first token, next token", "published, 7B, 1,024 in", *titles], rows)


def start(results: Results) -> Lines:
    files = results.of("loads-start-embedded")
    if not files:
        return UNMEASURED
    rows = [
        [f"{each['request']}", *(spread(each[figure], shown) for figure in ("first_token_s", "response_s"))]
        for each in files[-1].result["rows"]
        for shown in ((seconds,) if isinstance(each["request"], int) else ("{:.2f}".format,))
        if each["request"] in (1, 2, 10) or isinstance(each["request"], str)
    ]
    return table(["request after a start", "first token", "whole answer"], rows)


def concurrency(results: Results) -> Lines:
    files = results.of("loads-concurrency-embedded")
    if not files:
        return UNMEASURED
    by_users: dict[int, dict[int, Json]] = {}
    for each in files[-1].result["rows"]:
        by_users.setdefault(each["users"], {})[each["workers"]] = each
    rows = []
    for users, by_workers in by_users.items():
        cells = [f"{users:,}"]
        for figure, shown in CONCURRENCY.values():
            cells += [spread(by_workers[n][figure], shown) if figure in by_workers.get(n, {}) else NONE for n in (1, 2)]
        rows.append(cells)
    titles = [f"{title}, {workers}" for title in CONCURRENCY for workers in ("one worker", "two")]
    return table(["requests at once", *titles], rows)


def confidential(results: Results) -> Lines:
    """Plain against TDX, and our front with soft evidence."""
    published = [
        ["published: load, 7B", "1.774 s", "4.557 s", "2.57"],
        ["published: first token, 1024 in", "4039 ms", "4423 ms", "1.09"],
        ["published: next token", "161 ms", "173 ms", "1.07"],
    ]
    rows = []
    for file in results.of("confidential-embedded"):
        one, title = file.result, f"ours, 135M, soft evidence ({file.machine})"
        pairs: Sequence[tuple[str, float, float]] = (
            ("load, sealed over copied", one["load_s"]["folder_copied"], one["load_s"]["sealed"]),
            ("first token", one["first_token_s"]["plain"], one["first_token_s"]["attested"]),
            ("next token", one["next_token_s"]["plain"]["1"], one["next_token_s"]["attested"]["1"]),
        )
        rows += [[f"{title}: {name}", seconds(a), seconds(b), f"{b / a:.2f}"] for name, a, b in pairs]
    return table(["", "plain", "confidential", "ratio"], [*published, *rows])
