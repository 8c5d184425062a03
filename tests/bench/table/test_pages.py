import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.code_age import EngineChange
from bench.common import ROOT
from bench.table.conversations import read_conversations
from bench.table.pages import (
    COMPARISONS,
    CONVERSATIONS,
    Pages,
    begin,
    details,
    end,
    file_table,
    recorded_change,
    short_table,
    with_blocks,
    written,
)  # fmt: skip
from bench.table.pictures import draw_pictures, merged, pictured_machine
from bench.table.results import Machine, ResultsError, read_results
from tests.bench.table.samples import FACTS, ONE, PROMPT, TokenRates, comparison, write

DOCS, RESULTS = ROOT / "docs", ROOT / "bench" / "results"
BEFORE = EngineChange(datetime(2026, 1, 31, tzinfo=UTC), "abc")
AFTER = EngineChange(datetime(2026, 2, 2, 10, 5, tzinfo=UTC), "abc")
RATES: TokenRates = {
    "redoubt": {PROMPT: 200.0, ONE: 60.0},
    "llama_cpp": {PROMPT: 100.0, ONE: "crashed"},
}


def test_the_pages_have_the_tables_of_the_results() -> None:
    """With the marks for what was the engine's last change when they were written, as the page names it."""
    pages = Pages.of(DOCS, RESULTS)
    change = recorded_change(pages.short.read_text(encoding="utf-8"))
    assert change is not None
    for path, text in written(read_results(RESULTS), read_conversations(RESULTS), pages, change).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `redoubt bench table --render`"


def test_the_short_table_has_ratios_and_the_age_of_code(tmp_path: Path) -> None:
    write(tmp_path, "a", comparison(RATES))
    assert short_table(read_results(tmp_path), BEFORE).splitlines() == [
        "|  | Zen 4 |",
        "| --- | ---: |",
        "| 1.1B, prompt of 512 | 2.00 |",
        "| 1.1B, one answer | no peer |",
        "| newest code | 2026-02-01 |",
        "",
        "Every engine had 2 threads. All figures are of code after the engine's last change "
        "(`abc`, 2026-01-31 00:00 UTC).",
    ]


def test_old_code_is_marked_in_the_heading_or_in_cells(tmp_path: Path) -> None:
    write(tmp_path, "a", comparison(RATES))
    all_old = short_table(read_results(tmp_path), AFTER)
    assert "| Zen 4 † |" in all_old
    assert "| 2.00 |" in all_old
    assert "last change (`abc`, 2026-02-02 10:05 UTC): all figures." in all_old
    newer = {"measured_at": "2026-02-05T00:00:00+00:00", "code_at": "2026-02-02T10:05:00+00:00"}
    write(tmp_path, "b", comparison({"redoubt": {PROMPT: 300.0}, "llama_cpp": {PROMPT: 100.0}}, **newer))
    mixed = short_table(read_results(tmp_path), AFTER)
    assert "| Zen 4 |" in mixed
    assert "| 1.1B, prompt of 512 | 3.00 |" in mixed
    assert "| 1.1B, one answer | no peer † |" in mixed
    assert "| newest code | 2026-02-02 |" in mixed
    assert "1 of 2 figures." in mixed


@pytest.mark.parametrize("change", [BEFORE, AFTER])
def test_a_table_records_what_it_was_held_against(tmp_path: Path, change: EngineChange) -> None:
    write(tmp_path, "a", comparison(RATES))
    assert recorded_change(short_table(read_results(tmp_path), change)) == change
    assert recorded_change(short_table(read_results(tmp_path), None)) is None


def test_threads_are_named_where_they_differ(tmp_path: Path) -> None:
    write(tmp_path, "a", comparison(RATES))
    write(tmp_path, "b", comparison(RATES, threads=1))
    table = short_table(read_results(tmp_path), BEFORE)
    assert "| Zen 4, 1 thread | Zen 4, 2 threads |" in table
    assert "Every engine" not in table


def test_the_details_have_spreads_aims_figures_and_files(tmp_path: Path) -> None:
    rates: TokenRates = {
        **RATES,
        "redoubt": {PROMPT: 140.0, ONE: 60.0},
        "ik_llama_cpp": {ONE: 30.0},
    }
    result = comparison(rates, missing={"openvino_genai": "no memory"})
    result["engines"]["ik_llama_cpp"]["settings"] = "the wheel's generic build; x"
    result["engines"]["llama_cpp"]["settings"] = "threads 2, INFERENCE_PRECISION_HINT f32 or bf16, x"
    write(tmp_path, "a", result)
    (tmp_path / "machines.toml").write_text(
        '[about]\n"Zen 4" = "It was cold."\n[files."compare-a"]\nnote = "disturbed"\n'
    )
    text = details(read_results(tmp_path), BEFORE)
    assert "| 1.1B, prompt of 512 | 1.5 | **1.40 (1.00 to 9.00)** |" in text
    assert "| 1.1B, one answer | 1.08 | 2.00 (1.00 to 9.00) |" in text
    assert "### Zen 4, 2 threads" in text
    assert "AMD EPYC, family 25, model 17; 2 cores, 24 GiB; avx2, avx512_vnni. It was cold." in text
    assert "| tokens/s | Redoubt | of the limit | llama.cpp | ik_llama.cpp | file |" in text
    assert "| 1.1B, one answer | 60.0 | 15% (read) | crashed | **30.0** | compare-a |" in text
    assert (
        "- `compare-a`: 2026-02-03, commit aaaaaaa, 2 rounds; tier x; reads 40 GB/s, 470 G multiply-adds/s (vnni); "
        "beside llama_cpp 1 (in f32 or bf16), ik_llama_cpp 1 (the generic wheel); missing: OpenVINO GenAI; disturbed."
        in text
    )


def test_an_interrupted_run_is_seen_in_the_list_of_files(tmp_path: Path) -> None:
    write(tmp_path, "a", comparison(RATES, rounds_finished=1, repeats=3, commit="aaaaaaaaaaaa-dirty"))
    (line,) = file_table(read_results(tmp_path)).splitlines()[2:]
    assert line == "| compare-a | Zen 4, 2 threads | 2026-02-03 | aaaaaaa+ | int16 | llama.cpp | 1 of 3 |  |"


def test_without_peers_there_are_no_ratios(tmp_path: Path) -> None:
    write(tmp_path, "a", comparison({"redoubt": {ONE: 60.0}}))
    text = details(read_results(tmp_path), None)
    assert "| 1.1B, one answer | 1.08 | no peer |" in text
    assert "beside no peer." in text
    assert "is not known here" in text


def test_a_page_keeps_what_is_around_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    first, last = begin(COMPARISONS), end(COMPARISONS)
    page.write_text(f"before\n{first}\nold\n{last}\nafter\n")
    assert with_blocks(page, {COMPARISONS: "new"}) == f"before\n{first}\n\nnew\n\n{last}\nafter\n"
    page.write_text(f"before\n{first}\n")
    with pytest.raises(ResultsError, match="add them"):
        with_blocks(page, {COMPARISONS: "new"})
    page.write_text(f"{first}\n{last}\n")
    with pytest.raises(ResultsError, match=begin(CONVERSATIONS)[:20]):
        with_blocks(page, {COMPARISONS: "new", CONVERSATIONS: "too"})


def test_pictures_are_of_the_machine_that_was_measured_last(tmp_path: Path) -> None:
    write(tmp_path, "a", comparison(RATES))
    later = {"measured_at": "2026-03-01T00:00:00+00:00", "machine": {**FACTS, "name": "Zen 5"}}
    more = {"redoubt": {PROMPT: 300.0, "prefill 8192": 200.0}}
    write(tmp_path, "b", comparison(more, **later))
    write(tmp_path, "c", comparison({"redoubt": {ONE: 50.0}, "redoubt_int8": {ONE: 55.0}}, **later))
    results = read_results(tmp_path).comparisons
    zen5 = Machine("Zen 5", 2)
    assert pictured_machine(results) == zen5
    result = merged(results, zen5, "1.1b")
    assert set(result["works"]) == {PROMPT, ONE, "prefill 8192"}
    assert result["engines"]["redoubt"]["results"][ONE]["median"] == 50.0
    assert set(result["engines"]) == {"redoubt", "redoubt_int8"}
    assert merged(results, zen5, "embedded")["works"] == {}
    pytest.importorskip("matplotlib")
    drawn = draw_pictures(results, tmp_path / "plots")
    assert [path.name for path in drawn] == ["1.1b-first-token.svg"]
    before = drawn[0].read_bytes()
    shutil.rmtree(tmp_path / "plots")
    assert draw_pictures(results, tmp_path / "plots")[0].read_bytes() == before


def test_nothing_measured_is_no_picture(tmp_path: Path) -> None:
    assert pictured_machine(()) is None
    assert draw_pictures((), tmp_path) == []
