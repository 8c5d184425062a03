"""The tables of the other four documents with ours beside: PPL.LLM, Intel's LLM Runtime, a Rust engine, int8 pages."""

from typing import Final

from bench.published.results import NONE, Json, Results, mib, seconds, spread, table
from bench.published.thesis import NAMES, UNMEASURED
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
    "int8 pages, over the default's": "int8 keys and values: twice the requests held, +50 % tokens/s (with batching)",
    "int8 products, over fp32": "int8 products: nearly +100 %, over fp16",
}


def gains(results: Results) -> Lines:
    files = results.of("gains-embedded")
    if not files:
        return UNMEASURED
    rows = [
        [each["name"], each["load"], GAINS.get(each["name"], NONE), f"{spread(each['gain'])} times as fast"]
        for each in files[-1].result["rows"]
    ]
    rows.append(["tokenizing, computing and answering overlap", NONE, "+10 to 20 % requests/s", _waits(results)])
    return table(["optimization", "load", "published (GPU)", "ours"], rows, left=2)


def _waits(results: Results) -> str:
    return "always on; see below what the kernels wait" if results.of("kernel-waits") else "always on, no switch"


def first_token(results: Results) -> Lines:
    """First token over prompt length and users; theirs by prompt length."""
    told = {8: "6.78 ms; 768 users: 165 ms", 1024: "80 users: about 2 s", 2048: "2078 ms"}
    files = results.of("loads-first-token-embedded")
    times = {(each["prompt_tokens"], each["users"]): each for each in (files[-1].result["rows"] if files else ())}
    users = sorted({number for _, number in times})
    rows = [
        [f"{prompt:,}", told.get(prompt, NONE),
         *(spread(times[prompt, n]["first_token_s"], seconds) if (prompt, n) in times else NONE for n in users)]
        for prompt in sorted({*told, *(prompt for prompt, _ in times)})
    ]  # fmt: skip
    ours = [f"ours: {n} user{'s' if n > 1 else ''}" for n in users]
    return table(["tokens in", "published: 7B on a GPU", *ours], rows)


def batches(results: Results) -> Lines:
    """int4 against int8 by batch: one matrix."""
    files = results.of("kernels-4096x4096")
    if not files:
        return UNMEASURED
    int4, int8 = (
        {each["batch"]: each["median_seconds"] for each in files[-1].result["results"] if each["case"] == case}
        for case in ("sym_int4-4096x4096-g64", "int8-4096x4096-g64")
    )
    rows = [
        [str(batch), _told(batch), seconds(time_s), seconds(int8[batch]), f"{int8[batch] / time_s:.2f}"]
        for batch, time_s in int4.items()
    ]
    return table(["rows", "published", "ours, sym_int4", "ours, int8", "int8's time over sym_int4's"], rows)


def _told(batch: int) -> str:
    return {
        64: "int4 30 % faster than fp16", 128: "int4 20 % faster than fp16, int8 100 %",
    }.get(batch, NONE)  # fmt: skip


def beside_llama_cpp(results: Results) -> Lines:
    rows = [
        ["published: 32 in, 32 out, whole answer", "1.76 to 3.43", NONE],
        ["published: 1,024 in, 32 out, whole answer", "3.58 to 21.5", NONE],
        ["published: 1,024 in, first token, at best (Baichuan-13B)", "40", NONE],
        ["published: 1,024 in, next token, at best (MPT-7B)", "2.68", NONE],
    ]
    figures = {"response_s": "whole answer", "first_token_s": "first token", "next_token_s": "next token"}
    for file in (file for name in LENGTHS for file in results.of(name)[-1:]):
        for each in file.result["rows"]:
            for figure, title in figures.items():
                if figure in each.get("its_over_ours", {}):
                    users = "" if each["users"] == 1 else f", {each['users']} at once"
                    lengths = f"{each['prompt_tokens']:,} in, {each['new_tokens']} out"
                    what = f"ours, {file.result['model']}: {lengths}{users}, {title}"
                    rows.append([what, NONE, spread(each["its_over_ours"][figure])])
    return table(["", "times as fast as llama.cpp, published", "ours"], rows)


def stages(results: Results) -> Lines:
    """Time of a layer by stage and type."""
    rows = [["published, fp32", *(f"{RUST_MS[stage][0]:.2f} ms" for stage in STAGES)],
            ["published, fp16", *(f"{RUST_MS[stage][1]:.2f} ms" for stage in STAGES)]]  # fmt: skip
    spent: dict[str, Json] = {}
    for file in results.of("original-135m")[-1:]:
        for name in NAMES:
            if "stages_s" in file.result["types"].get(name, {}):
                spent[name] = file.result["types"][name]["stages_s"]["prompt"]
    for file in results.of("stages-17-embedded")[-1:]:
        spent["asym_int4, embedded model"] = file.result["stages"]["prefill 17"]["stages_s"]
    layers = SHAPES["smollm2-135m"]["num_hidden_layers"]
    for name, each in spent.items():
        by_stage = (sum(each[part] for part in parts) / layers for parts in STAGES.values())
        rows.append([f"ours, {name}", *map(seconds, by_stage)])
    return table(["a layer, 17 tokens", *STAGES], rows)


def shares(results: Results) -> Lines:
    """Shares of a step by stage and by type, for prompts and streams."""
    files = results.of("stages-embedded")
    if not files:
        return UNMEASURED
    rows = []
    for name, work in files[-1].result["stages"].items():
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
    for file in results.of("original-135m")[-1:]:
        for name in NAMES:
            one = file.result["types"].get(name)
            if one is not None and "inputs" in one:
                times = one["inputs"][str(file.result["inputs"][0])]
                cells = [
                    f"{mib(one['resident_bytes'])} MiB",
                    seconds(times["first_token_s"]),
                    seconds(times["next_token_s"]),
                ]
                rows.append(["SmolLM2-135M's shape", NAMES[name], *cells])
    return table(["model", "weights", "memory", "first token", "next token"], rows, left=1)


def pages(_: Results) -> Lines:
    """Pages in the same memory, by arithmetic."""
    values, head = 1.0, SHAPES["llama2-13b"]["head_dim"]
    bf16, int8 = 2 * values, values + 2 / head
    rows = [["published: blocks in an A100's memory, Llama 13B", "3078", "6127", "1.99"],
            ["ours: bytes a value, scales included", f"{bf16:.2f}", f"{int8:.3f}", f"{bf16 / int8:.2f}"]]  # fmt: skip
    return table(["", "bf16", "int8", "times the pages"], rows)


def page_error(results: Results) -> Lines:
    files = results.of("kv-error-embedded")
    if not files:
        return UNMEASURED
    rows = [
        [name, f"{each['attention']:.2%}", f"{each['mean_kl']:.2g}"]
        for name, each in files[-1].result["schemes"].items()
    ]
    return table(["keys and values", "attention's error", "mean KL, nats a token"], rows)
