"""The tables of the other four documents with ours beside: PPL.LLM, Intel's LLM Runtime, a Rust engine, int8 pages."""

import statistics
from collections.abc import Mapping
from typing import Final

from bench.published.results import (
    NONE,
    UNMEASURED,
    File,
    Json,
    Results,
    by_machine,
    mib,
    newest_of_each_machine,
    seconds,
    spread,
    table,
)  # fmt: skip
from bench.published.thesis import NAMES
from quant.conversion.shapes import SHAPES

Lines = list[str]
RUST_MS: Final = {"QKV": (1.58, 10.18), "attention": (1.47, 6.94), "MLP": (11.64, 65.42), "layer": (14.32, 82.61)}
"""fp32 and fp16, 17 tokens."""
_MLP: Final = ("gate_up", "down")
STAGES: Final = {
    "QKV": ("qkv",), "attention": ("rope", "attention", "output"), "MLP": _MLP,
    "layer": ("qkv", "rope", "attention", "output", *_MLP),
}  # fmt: skip
"""What theirs are of the native profile's."""
TYPES_S: Final = {"products": "by type: products", "attention": "attention", "rest": "the rest", "barriers": "waiting"}
LENGTHS: Final = ("loads-lengths-embedded", "loads-lengths-1.1b")
GAINS: Final = {
    "batching, over one at a time": "dynamic batching: +100 % requests/s",
    "batching as requests come, over whole batches": "dynamic batching: +100 % requests/s",
    "pages, over whole contexts": "memory by prediction: about +200 % requests/s",
    "int8 pages, over the default's": "not this: theirs holds twice the requests in the same memory, +50 % tokens/s",
    "int8 products, over fp32": "int8 products: nearly +100 %, over fp16",
}


FIRST_TOKEN: Final = tuple(f"loads-first-token-embedded{load}" for load in ("", "-768-users", "-80-users"))
WAITS: Final = {"this": "delivered beside the next step", "against": "delivered between two steps, as before"}
RECEIVERS: Final = {"alone": "that do nothing", "streams": "that stream to a reader"}
PHASES: Final = {
    "drain": "new requests", "schedule": "the plan", "fill": "filling arrays", "call": "the call and Python's lock",
    "take": "taking tokens", "deliver": "delivering them",
}  # fmt: skip


def gains(results: Results) -> Lines:
    def one(file: File) -> Lines:
        rows = [
            [each["name"], each["load"], GAINS.get(each["name"], NONE), _gain(each["gain"])]
            for each in file.result["rows"]
        ]
        rows.append(["tokenizing, computing and answering overlap", NONE, "+10 to 20 % requests/s", _overlap(results)])
        return table(["optimization", "load", "published (GPU)", "ours"], rows, left=2)

    return by_machine(results.shown("gains-embedded"), one)


def _gain(found: Mapping[str, float]) -> str:
    told = f"{spread(found)} times as fast"
    return f"{told}: no gain beyond noise" if found["lowest"] < 1 < found["highest"] else told


def _overlap(results: Results) -> str:
    """What delivering beside the next step gains, or what the kernels still wait."""
    for file in reversed(results.shown("kernel-waits-embedded")):
        told = [
            f"{streams} streams {_rate(one['this'], one['against'])}"
            if "against" in one
            else f"{streams} streams {one['this']['waits_share']:.1%} waited"
            for streams, one in file.result["results"].get("streams", {}).items()
        ]
        if told:
            return f"{', '.join(told)}; [below](#what-the-kernels-wait-for-between-two-steps)"
    return "always on, no switch"


def _rate(ours: Json, theirs: Json) -> str:
    return f"{100 * (ours['tokens_per_s'] / theirs['tokens_per_s'] - 1):+.1f} % tokens/s"


def kernel_waits(results: Results) -> Lines:
    """The share of the time between two decode steps in which the kernels wait, by receivers and streams."""

    def one(file: File) -> Lines:
        found = file.result["results"]
        which = [name for name in WAITS if any(name in each for streams in found.values() for each in streams.values())]
        rows = []
        for receiver, by_streams in found.items():
            for streams, each in by_streams.items():
                cells = [RECEIVERS.get(receiver, receiver), streams]
                cells += [_waited(each[name]) if name in each else NONE for name in which]
                cells.append(_rate(each["this"], each["against"]) if "against" in each else NONE)
                rows.append([*cells, _phases(each["this"])])
        return table(
            ["receivers", "streams", *(f"waited, {WAITS[name]}" for name in which), "gain", "for what"], rows, left=1
        )

    return by_machine(results.shown("kernel-waits-embedded"), one)


def _waited(one: Json) -> str:
    return f"{one['waits_share']:.1%} of {seconds(one['step_us'] / 1e6)}"


def _phases(one: Json) -> str:
    """The two longest of them."""
    times = one.get("phases", one)
    found = {title: times[f"{name}_us"] for name, title in PHASES.items() if f"{name}_us" in times}
    longest = sorted(found, key=lambda title: -found[title])[:2]
    return ", ".join(f"{title} {found[title]:.0f} µs" for title in longest)


def first_token(results: Results) -> Lines:
    """First token over prompt length and users; theirs by prompt length. A machine's files are one table."""
    found = [file for name in FIRST_TOKEN for file in results.of(name)]
    found.sort(key=lambda file: str(file.result.get("measured_at", "")))

    def one(newest: File) -> Lines:
        rows = [row for file in found if file.machine == newest.machine for row in file.result["rows"]]
        return _first_token({(row["prompt_tokens"], row["users"]): row for row in rows})

    return by_machine(newest_of_each_machine(found), one)


def _first_token(times: Mapping[tuple[int, int], Json]) -> Lines:
    told = {8: "6.78 ms; 768 users: 165 ms", 1024: "80 users: about 2 s", 2048: "2078 ms"}
    prompts = {prompt for prompt, _ in times}
    users = sorted({number for _, number in times})
    if 2048 not in prompts and 2032 in prompts:
        told[2032] = f"{told.pop(2048)} (2,048 in)"
    rows = [
        [f"{prompt:,}", told.get(prompt, NONE),
         *(spread(times[prompt, n]["first_token_s"], seconds) if (prompt, n) in times else NONE for n in users)]
        for prompt in sorted({*told, *prompts})
    ]  # fmt: skip
    ours = [f"ours: {n} user{'s' if n > 1 else ''}" for n in users]
    return table(["tokens in", "published: 7B on a GPU", *ours], rows)


def batches(results: Results) -> Lines:
    """int4 and int8 against fp16 and each other by batch: one matrix. Those without all of it leave cells empty."""
    return by_machine(results.shown("kernels-4096x4096"), _batches)


def _batches(file: File) -> Lines:
    by_case: dict[str, dict[int, Json]] = {}
    for each in file.result["results"]:
        by_case.setdefault(each["case"], {}).setdefault(each["batch"], each)
    int4, int8, fp16 = (by_case.get(f"{case}", {}) for case in (*(f"{t}-4096x4096-g64" for t in _INTEGERS), _FP16))
    rows = []
    for batch, one in int4.items():
        times = [each[batch]["median_seconds"] if batch in each else None for each in (int4, int8, fp16)]
        cells = [NONE if time_s is None else seconds(time_s) for time_s in times]
        ratios = [f"{b / a:.2f}" if a and b else NONE for a, b in
                  ((times[0], times[1]), (times[0], times[2]), (times[1], times[2]))]  # fmt: skip
        rows.append([str(batch), _told(batch), *cells, *ratios, f"{min(1, one['share_of_read_rate']):.0%}"])
    heads = ["rows", "published", "ours: sym_int4", "int8", "fp16", "int8's time over sym_int4's",
             "fp16's over sym_int4's", "fp16's over int8's", "sym_int4 reads, of what memory can"]  # fmt: skip
    return table(heads, rows)


_INTEGERS: Final = ("sym_int4", "int8")
_FP16: Final = "fp16-4096x4096"


def _told(batch: int) -> str:
    return {
        64: "int4 30 % faster than fp16", 128: "int4 20 % faster than fp16, int8 100 %",
    }.get(batch, NONE)  # fmt: skip


def beside_llama_cpp(results: Results) -> Lines:
    """How much longer llama.cpp takes: theirs, and ours by model, machine and requests at once."""
    published = {
        (32, "response_s"): "1.76 to 3.43", (1024, "response_s"): "3.58 to 21.5",
        (1024, "first_token_s"): "40 at best (Baichuan-13B)", (1024, "next_token_s"): "2.68 at best (MPT-7B)",
    }  # fmt: skip
    figures = {"response_s": "whole answer", "first_token_s": "first token", "next_token_s": "next token"}
    ours: dict[str, dict[tuple[int, str], str]] = {}
    for file in (file for name in LENGTHS for file in results.shown(name)):
        for each in file.result["rows"]:
            title = f"ours: {file.result['model']}, {file.machine}, {each['users']} at once"
            for figure, found in each.get("its_over_ours", {}).items():
                ours.setdefault(title, {})[each["prompt_tokens"], figure] = spread(found)
    rows = [
        [f"{prompt:,} in, {name}", published.get((prompt, figure), NONE),
         *(found.get((prompt, figure), NONE) for found in ours.values())]
        for prompt in (32, 1024)
        for figure, name in figures.items()
    ]  # fmt: skip
    lacking = [f"Not measured yet: `{name}`." for name in LENGTHS if not results.of(name)]
    return [*table(["times as fast as llama.cpp", "published", *ours], rows), *(["", *lacking] if lacking else [])]


def tiers(results: Results) -> Lines:
    """Kernels by instruction set on one machine, which has all of these: how much faster than with AVX2."""
    files = results.of("kernels-tiers")[-1:] + results.of("ops-attention-tiers")[-1:]
    if not files:
        return UNMEASURED
    rows: dict[str, dict[str, float]] = {}
    for file in files:
        for tier, run in file.result["runs"].items():
            for name, time_s in _tier_times(run["results"]).items():
                rows.setdefault(name, {})[tier] = time_s
    names = list(dict.fromkeys(tier for times in rows.values() for tier in times))
    cells = [
        [name, *(f"{times[names[0]] / times[tier]:.2f}" if tier in times else NONE for tier in names[1:])]
        for name, times in rows.items()
    ]
    return table([f"times as fast as {names[0]}", *names[1:]], cells)


def _tier_times(found: list[Json]) -> dict[str, float]:
    """Of the works that the table shows: seconds, of attention the geometric mean over heads that share a key."""
    times: dict[str, float] = {}
    heads: dict[str, list[float]] = {}
    for each in found:
        if "case" in each:
            qtype = each["case"].removesuffix("-4096x4096-g64")
            if qtype in _INTEGERS and each["activations"] == "int8" and each["batch"] in (1, 8, 128):
                rows = f"{each['batch']} row{'s' if each['batch'] > 1 else ''}"
                times[f"`{qtype}`, 4,096 x 4,096, {rows}"] = each["median_seconds"]
        elif each["shape"]["kv_type"] == "int16" and each["shape"]["head_dim"] == 64:
            shape = each["shape"]
            what = "one token after 8,191" if shape["query_tokens"] == 1 else "a prompt at 4,096"
            heads.setdefault(f"attention, int16, {what}", []).append(each["seconds"])
    return times | {name: statistics.geometric_mean(each) for name, each in heads.items()}


def stages(results: Results) -> Lines:
    """Time of a layer by stage and type."""
    rows = [["published, fp32", *(f"{RUST_MS[stage][0]:.2f} ms" for stage in STAGES)],
            ["published, fp16", *(f"{RUST_MS[stage][1]:.2f} ms" for stage in STAGES)]]  # fmt: skip
    spent: list[tuple[str, Json]] = []
    for file in results.shown("original-135m"):
        types = file.result["types"]
        spent += [
            (f"{name}, {file.processor}", types[name]["stages_s"]["prompt"])
            for name in NAMES
            if "stages_s" in types.get(name, {})
        ]
    spent += [
        (f"asym_int4, embedded model, {file.processor}", file.result["stages"]["prefill 17"]["stages_s"])
        for file in results.shown("stages-17-embedded")
    ]
    layers = SHAPES["smollm2-135m"]["num_hidden_layers"]
    for name, each in spent:
        by_stage = (sum(each[part] for part in parts) / layers for parts in STAGES.values())
        rows.append([f"ours, {name}", *map(seconds, by_stage)])
    return table(["a layer, 17 tokens", *STAGES], rows)


def shares(results: Results) -> Lines:
    """Shares of a step by stage and by type, for prompts and streams."""
    return by_machine(results.shown("stages-embedded"), _shares)


def _shares(file: File) -> Lines:
    rows = []
    for name, work in file.result["stages"].items():
        parts = [
            sum(work["stages_s"][part] for part in parts)
            for parts in (*list(STAGES.values())[:3], ("head",), ("sample",))
        ]
        types = [work["types_s"][each] for each in TYPES_S]
        rows.append([name, seconds(work["step_s"]), *(f"{each / work['step_s']:.1%}" for each in (*parts, *types))])
    return table(["ours: embedded model", "a step", *list(STAGES)[:3], "head", "sampling", *TYPES_S.values()], rows)


def float_types(results: Results) -> Lines:
    rows = [["published: a model of 125 MB in fp32", "fp32", "282.8 MB", NONE, NONE],
            ["published", "fp16", "153.1 MB", NONE, NONE]]  # fmt: skip
    for file in results.shown("original-135m"):
        for name in NAMES:
            one = file.result["types"].get(name)
            if one is not None and "inputs" in one:
                times = one["inputs"][str(file.result["inputs"][0])]
                cells = [
                    f"{mib(one['resident_bytes'])} MiB",
                    seconds(times["first_token_s"]),
                    seconds(times["next_token_s"]),
                ]
                rows.append([f"SmolLM2-135M's shape, {file.processor}", NAMES[name], *cells])
    return table(["model", "weights", "memory", "first token", "next token"], rows, left=1)


def pages(_: Results) -> Lines:
    """Pages in the same memory, by arithmetic."""
    values, head = 1.0, SHAPES["llama2-13b"]["head_dim"]
    bf16, int8 = 2 * values, values + 2 / head
    rows = [["published: blocks in an A100's memory, Llama 13B", "3078", "6127", "1.99"],
            ["ours: bytes a value, scales included", f"{bf16:.2f}", f"{int8:.3f}", f"{bf16 / int8:.2f}"]]  # fmt: skip
    return table(["", "bf16", "int8", "times the pages"], rows)


def page_error(results: Results) -> Lines:
    return by_machine(results.shown("kv-error-embedded"), _page_error)


def _page_error(file: File) -> Lines:
    rows = [
        [name, *(f"{each[part]:.2%}" for part in ("keys", "values", "attention")), f"{each['mean_kl']:.2g}"]
        for name, each in file.result["schemes"].items()
    ]
    return table(
        ["keys and values", "keys' error", "values' error", "attention's error", "mean KL, nats a token"], rows
    )
