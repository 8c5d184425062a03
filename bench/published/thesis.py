"""The tables of the thesis (Cao Zehua, Southeast University, 2024) with ours beside: Llama-2 on a Xeon 8468.

Its pictures have no numbers in the text, so only what the text says of them is here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bench.published import quality
from bench.published.results import NONE, UNMEASURED, File, Json, Results, by_machine, mib, seconds, spread, table
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
_ABILITY: Final = {"sym_int4-g64-rtn": "`rtn`", "sym_int4-g64-quick": "`quick`, the default"}
_LEAST_PROMPT: Final = 512
"""Of the tables of single tokens."""
CONCURRENCY: Final[Mapping[str, tuple[str, Any]]] = {
    "tokens/s": ("tokens_per_s", "{:.0f}".format), "next token p50": ("next_token_p50_s", seconds),
    "first token p50": ("first_token_p50_s", seconds),
}  # fmt: skip
"""By its title: the figure of `redoubt bench loads concurrency`, and how it is shown."""
Lines = list[str]


def summary(results: Results) -> Lines:
    """What its abstract promises, in one table: sym_int4 over the original."""
    files = [file for file in originals(results) if not file.result.get("layers")]
    soft = [
        f"{name} {100 * (attested / plain - 1):+.0f} %"
        for file in results.shown("confidential-embedded")[-1:]
        for name, plain, attested in _front(file.result)
    ]
    rows = [
        ["memory saved", "about 75 % (85 % by table 4.1)", _each(files, _saved("resident_bytes"))],
        ["load time saved", "85 % (95 % for 7B by figure 4-1)", _each(files, _saved("load_s"))],
        ["response time over the original's", "about 0.5", _each(files, _responses)],
        ["change of ability", "about 5 %", _ability(results)],
        ["extra latency of TDX", "up to 9.5 %", f"not on TDX; with soft evidence: {', '.join(soft)}" if soft else NONE],
    ]
    return table(["sym_int4", "published", "ours"], rows, left=2)


def _each(files: Sequence[File], cell: Callable[[Json, str], str]) -> str:
    """What `cell` says of each file's types against each original that it has."""
    told = []
    for file, title in zip(files, shape_titles(files), strict=True):
        found = {base: cell(file.result["types"], base) for base in BASES}
        cells = [f"{text} ({base.removeprefix('torch-')})" for base, text in found.items() if text]
        told += [f"{title}: {', '.join(cells)}"] if cells else []
    return "; ".join(told) or NONE


def _saved(figure: str) -> Callable[[Json, str], str]:
    """How much less of it sym_int4 takes."""

    def cell(types: Json, base: str) -> str:
        ours, theirs = types.get("sym_int4", {}).get(figure), types.get(base, {}).get(figure)
        return f"{1 - ours / theirs:.1%}" if ours and theirs else ""

    return cell


def _ability(results: Results) -> str:
    """The default method, and rounding to nearest as BigDL-LLM does: points of the mean of four sets."""
    found = {name: against for name, _, _, against in quality.means(results) if against}
    told = [f"{method} {found[name]}" for name, method in _ABILITY.items() if name in found]
    return f"SmolLM2-135M, points of four sets: {', '.join(told)}" if told else NONE


def _responses(types: Json, base: str) -> str:
    ratios = [ratio for _, _, ratio in _ratios(types, base)]
    if not ratios:
        return ""
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return low if low == high else f"{low} to {high}"


def _ratios(types: Json, base: str) -> list[tuple[str, str, float]]:
    """Input, output, and the response time of sym_int4 over the base's, where both have one."""
    if "inputs" not in types.get("sym_int4", {}) or "inputs" not in types.get(base, {}):
        return []
    return [
        (given, made, ours / theirs)
        for given, times in types["sym_int4"]["inputs"].items()
        for made, ours in times["response_s"].items()
        if (theirs := types[base]["inputs"].get(given, {}).get("response_s", {}).get(made))
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
    return table(["weights", "published, 7B", "published, 13B", *shape_titles(files)], rows)


def originals(results: Results) -> list[File]:
    """Each shape's newest result of each machine, without what is withdrawn of it."""
    return [_without_withdrawn(file) for name in SHAPES for file in results.shown(name)]


def _without_withdrawn(file: File) -> File:
    gone = file.result.get("withdrawn", {"types": (), "inputs": ()})
    types = {
        name: {**one, "inputs": {n: each for n, each in one["inputs"].items() if n not in gone["inputs"]}}
        if name in gone["types"] and "inputs" in one
        else one
        for name, one in file.result["types"].items()
    }
    return File(file.stem, {**file.result, "types": types})


def shape_titles(files: Sequence[File]) -> list[str]:
    """A short title of each: the shape and the processor, with the threads where those tell two apart."""
    short = [_shape_title(file) for file in files]
    return [
        f"{title}, {file.result['threads']} threads" if short.count(title) > 1 else title
        for file, title in zip(files, short, strict=True)
    ]


def _shape_title(file: File) -> str:
    shape = str(file.result["shape"]).rpartition("-")[2].upper()
    layers = file.result.get("layers")
    processor = re.sub(r"^Xeon( \(.*?\))? with AMX$", "AMX", file.processor)
    return f"{shape}{f', {layers} layers only' if layers else ''}, {processor}"


def _cell(file: File, name: str, figure: str, shown: Any) -> str:
    one = file.result["types"].get(name, {})
    return shown(one[figure]) if figure in one else NONE


def response(results: Results) -> Lines:
    """Times by input and output, and what is over what."""
    lines: Lines = []
    files = originals(results)
    for file, title in zip(files, shape_titles(files), strict=True):
        types = {each: one for each, one in file.result["types"].items() if "inputs" in one}
        names = [each for each in NAMES if each in types]
        rows = []
        for given in map(str, file.result["inputs"]):
            for made in map(str, file.result["outputs"]):
                times = {each: types[each]["inputs"].get(given, {}).get("response_s", {}).get(made) for each in names}
                if any(times.values()):
                    over = [_over(times.get("sym_int4"), times.get(base)) for base in BASES]
                    rows.append([f"{given} in, {made} out", *(_time(times[each]) for each in names), *over])
        head = [title, *(NAMES[each] for each in names), "sym_int4 over transformers' fp32", "over its bf16"]
        lines += ["", *table(head, rows)]
    return [*lines[1:], "", _half(files)] if lines else UNMEASURED


def _half(files: Sequence[File]) -> str:
    """One sentence on all ratios."""
    told = []
    for base in BASES:
        found = [ratio for file in files for _, _, ratio in _ratios(file.result["types"], base)]
        if found:
            shown = f"{min(found):.2f} to {max(found):.2f}"
            told.append(f"{shown} of {base.removeprefix('torch-')}'s ({len(found)} cells)")
    return f"**Theirs takes about half of fp32's time; ours {', '.join(told) or 'has none beside'}.**"


def _time(value: float | None) -> str:
    return NONE if value is None else seconds(value)


def _over(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.2f}" if ours and theirs else NONE


def tokens(results: Results) -> Lines:
    """First and next token after 512 and 1,024 tokens, of what has those."""
    files = originals(results)
    titles = dict(zip((file.stem for file in files), shape_titles(files), strict=True))
    given = [
        (file, str(prompt))
        for file in files
        for prompt in file.result["inputs"]
        if prompt >= _LEAST_PROMPT and prompt in (512, max(n for n in file.result["inputs"] if n <= PROMPT_TOKENS))
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
    heads = [f"{titles[file.stem]}, {int(prompt):,} in" for file, prompt in given]
    return [*table(["first token, next token", "published, 7B, 1,024 in", *heads], rows), *_first_times(given, titles)]


def _first_times(given: Sequence[tuple[File, str]], titles: Mapping[str, str]) -> Lines:
    """The first tokens one by one, where they were kept."""
    rows = []
    for file, prompt in given:
        for name, one in file.result["types"].items():
            times = one.get("inputs", {}).get(prompt, {}).get("first_times_s")
            if times:
                rows.append([f"{titles[file.stem]}, {int(prompt):,} in: {NAMES[name]}", *map(seconds, times)])
    width = max(map(len, rows), default=0)
    rows = [[*cells, *[NONE] * (width - len(cells))] for cells in rows]
    return ["", *table(["time of token", *map(str, range(1, width))], rows)] if rows else []


def start(results: Results) -> Lines:
    return by_machine(results.shown("loads-start-embedded"), _start)


def _start(file: File) -> Lines:
    rows = [
        [f"{each['request']}", *(spread(each[figure], shown) for figure in ("first_token_s", "response_s"))]
        for each in file.result["rows"]
        for shown in ((seconds,) if isinstance(each["request"], int) else ("{:.2f}".format,))
        if each["request"] in (1, 2, 10) or isinstance(each["request"], str)
    ]
    return table(["request after a start", "first token", "whole answer"], rows)


def concurrency(results: Results) -> Lines:
    return by_machine(results.shown("loads-concurrency-embedded"), _concurrency)


def _concurrency(file: File) -> Lines:
    by_users: dict[int, dict[int, Json]] = {}
    for each in file.result["rows"]:
        by_users.setdefault(each["users"], {})[each["workers"]] = each
    rows = []
    for users, by_workers in by_users.items():
        cells = [f"{users:,}"]
        for figure, shown in CONCURRENCY.values():
            cells += [spread(by_workers[n][figure], shown) if figure in by_workers.get(n, {}) else NONE for n in (1, 2)]
        rows.append(cells)
    titles = [f"{title}, {workers}" for title in CONCURRENCY for workers in ("one worker", "two")]
    return table(["requests at once", *titles], rows)


def _front(one: Json) -> list[tuple[str, float, float]]:
    """First and next token: seconds past the front and through it."""
    first, following = one["first_token_s"], one["next_token_s"]
    return [
        ("first token", first["plain"], first["attested"]),
        ("next token", following["plain"]["1"], following["attested"]["1"]),
    ]


def confidential(results: Results) -> Lines:
    """Plain against TDX, and our front with soft evidence: ours by file, with the file's own lengths."""
    rows = [["load, 7B", "1.774 s", "4.557 s", "2.57"],
            ["first token, 1,024 in", "4039 ms", "4423 ms", "1.09"],
            ["next token", "161 ms", "173 ms", "1.07"]]  # fmt: skip
    heads = ["", "published: plain", "TDX", "ratio"]
    for file in results.shown("confidential-embedded"):
        one = file.result
        lengths = f"{one['prompt']:,} in, {one['generate']} out"
        heads += [f"ours, 135M, {lengths}, {file.processor}: plain", f"{one['evidence']} evidence", "ratio"]
        load = ("load", one["load_s"]["folder_copied"], one["load_s"]["sealed"])
        for row, (_, plain, other) in zip(rows, (load, *_front(one)), strict=True):
            row += [seconds(plain), seconds(other), f"{other / plain:.2f}"]
    return table(heads, rows)
