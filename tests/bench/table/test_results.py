from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.table.cells import columns, work_name, works_of
from bench.table.results import Machine, ResultsError, read_results
from tests.bench.table.samples import ONE, PROMPT, TokenRates, comparison, write

FAST = comparison({"redoubt": {PROMPT: 200.0, ONE: 60.0}, "a": {PROMPT: 100.0, ONE: "crashed"}})
OLD = {key: value for key, value in FAST.items() if key not in ("machine", "measured_at", "code_at")}
ENTRY = '[files."compare-old"]\nmachine = "Zen 3"\nmeasured_at = 2026-01-01T01:00:00+01:00\n'


def test_a_file_says_where_and_when(tmp_path: Path) -> None:
    write(tmp_path, "new", FAST)
    (one,) = read_results(tmp_path).comparisons
    assert one.machine == Machine("Zen 4", 2)
    assert one.measured_at == datetime(2026, 2, 3, 4, 5, tzinfo=UTC)
    assert one.code_at == datetime(2026, 2, 1, tzinfo=UTC)
    assert one.gives(ONE)


def test_an_old_file_is_described_beside_it(tmp_path: Path) -> None:
    path = write(tmp_path, "old", OLD)
    with pytest.raises(ResultsError, match=f"{path} does not say on which machine.*machines.toml"):
        read_results(tmp_path)
    about = '[about]\n"Zen 3" = "AVX2"\n'
    (tmp_path / "machines.toml").write_text(f'{about}{ENTRY}only = ["{PROMPT}"]\nnote = "slow"\n')
    results = read_results(tmp_path)
    (one,) = results.comparisons
    assert (one.machine.name, one.note, one.gives(PROMPT), one.gives(ONE)) == ("Zen 3", "slow", True, False)
    assert one.code_at == one.measured_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert results.about == {"Zen 3": "AVX2"}


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (ENTRY.replace("old", "gone"), "describes compare-gone, which is not there"),
        ("[files", "is no TOML"),
        (ENTRY.replace("2026-01-01T01:00:00+01:00", '"soon"'), "does not say"),
        (ENTRY.replace("+01:00", ""), "does not say"),
        (f'{ENTRY}only = "{PROMPT}"', "does not say"),
    ],
)
def test_a_wrong_description_is_named(tmp_path: Path, toml: str, message: str) -> None:
    write(tmp_path, "old", OLD)
    (tmp_path / "machines.toml").write_text(toml)
    with pytest.raises(ResultsError, match=message):
        read_results(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"engines": {}, "works": {}, "model": "m"}'])
def test_a_file_that_is_no_comparison_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "compare-x.json").write_text(text)
    with pytest.raises(ResultsError, match=r"compare-x\.json"):
        read_results(tmp_path)


def test_the_newest_figure_of_each_work_is_shown(tmp_path: Path) -> None:
    write(tmp_path, "z", FAST)
    newer = comparison({"redoubt": {PROMPT: 300.0}, "b": {PROMPT: 100.0}}, measured_at="2026-02-04T00:00:00+00:00")
    write(tmp_path, "a", newer)
    write(tmp_path, "more", {**FAST, "threads": 8})
    table = columns(read_results(tmp_path).comparisons)
    assert list(table) == [Machine("Zen 4", 2), Machine("Zen 4", 8)]
    column = table[Machine("Zen 4", 2)]
    prompt, one = column["1.1b", PROMPT], column["1.1b", ONE]
    assert (prompt.source.file, prompt.peer, prompt.ratio, prompt.share) == ("compare-a", "b", 3.0, 0.75)
    assert (one.source.file, one.peer) == ("compare-z", None)  # its peer crashed


def test_a_figure_without_a_peer_replaces_none_with_one(tmp_path: Path) -> None:
    later = {"measured_at": "2026-02-04T00:00:00+00:00"}
    write(tmp_path, "a", FAST)
    write(tmp_path, "b", comparison({"redoubt": {PROMPT: 300.0, ONE: 70.0}}, **later))
    column = columns(read_results(tmp_path).comparisons)[Machine("Zen 4", 2)]
    assert column["1.1b", PROMPT].ours_tokens_per_s == 200.0
    assert column["1.1b", ONE].ours_tokens_per_s == 70.0  # neither has a peer


def test_a_comparison_with_fewer_peers_names_those_it_lacks(tmp_path: Path) -> None:
    rates: TokenRates = {"redoubt": {ONE: 60.0}, "a": {ONE: 20.0}, "b": {ONE: 30.0}}
    write(tmp_path, "x", comparison(rates))
    later = {"measured_at": "2026-02-04T00:00:00+00:00"}
    write(tmp_path, "y", comparison({name: rates[name] for name in ("redoubt", "a")}, **later))
    cell = columns(read_results(tmp_path).comparisons)[Machine("Zen 4", 2)]["1.1b", ONE]
    assert (cell.source.file, cell.without) == ("compare-y", ("b",))
    rates["b"] = {ONE: "crashed"}  # that is a result, which the details have
    write(tmp_path, "z", comparison(rates, measured_at="2026-02-05T00:00:00+00:00"))
    assert columns(read_results(tmp_path).comparisons)[Machine("Zen 4", 2)]["1.1b", ONE].without == ()


def test_a_machine_without_figures_is_no_column(tmp_path: Path) -> None:
    write(tmp_path, "a", comparison({"redoubt": {ONE: "crashed"}, "a": {ONE: 1.0}}))
    assert columns(read_results(tmp_path).comparisons) == {}


def test_ours_in_another_type_is_no_peer(tmp_path: Path) -> None:
    rates = {"redoubt": {ONE: 60.0}, "redoubt_bf16": {ONE: 70.0}, "a": {ONE: 20.0}, "b": {ONE: 30.0}}
    write(tmp_path, "x", comparison(rates))
    cell = columns(read_results(tmp_path).comparisons)[Machine("Zen 4", 2)]["1.1b", ONE]
    assert (cell.peer, cell.ratio) == ("b", 2.0)


def test_columns_have_their_order(tmp_path: Path) -> None:
    names = ("a core", "Zen 3", "Xeon with AMX", "Zen 5", "Xeon (Ice Lake)")
    for name in names:
        write(tmp_path, name.replace(" ", ""), {**FAST, "machine": {**FAST["machine"], "name": name}})
    shown = [machine.name for machine in columns(read_results(tmp_path).comparisons)]
    assert shown == ["Xeon (Ice Lake)", "Xeon with AMX", "Zen 5", "Zen 3", "a core"]


def test_rows_have_their_order_and_words(tmp_path: Path) -> None:
    works = (PROMPT, ONE, "decode 8 at 128", "prefill 8192", "decode 1 at 8192", "decode 32 at 128", "decode 1 at 512")
    rates = dict.fromkeys(works, 10.0)
    write(tmp_path, "a", comparison({"redoubt": rates}))
    write(tmp_path, "b", comparison({"redoubt": {PROMPT: 1.0}}, model="embedded"))
    write(tmp_path, "c", comparison({"redoubt": {PROMPT: 1.0}}, model="8b"))
    rows = works_of(columns(read_results(tmp_path).comparisons))
    assert [(model, work.title) for model, work in rows] == [
        ("8b", "prompt of 512"),
        ("1.1b", "prompt of 512"),
        ("1.1b", "one answer"),
        ("1.1b", "8 answers together"),
        ("1.1b", "32 answers together"),
        ("1.1b", "one answer after 512"),
        ("1.1b", "prompt of 8,192"),
        ("1.1b", "one answer after 8,192"),
        ("embedded", "prompt of 512"),
    ]


def test_a_name_of_no_work() -> None:
    with pytest.raises(ValueError, match="no work's name"):
        work_name("prefill at 5")
