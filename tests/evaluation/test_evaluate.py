"""Scores against a textbook edit distance, and the command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe._system import remote
from fastscribe._system.text_layout import num_columns
from fastscribe.errors import UsageError
from fastscribe.evaluation import scores as scoring
from fastscribe.evaluation.report import _HEADER, counts, marked_diff, side_by_side, to_object, to_table
from fastscribe.evaluation.results import Fields, References, read_run
from fastscribe.evaluation.scores import (
    Edits,
    NormalizerName,
    Pair,
    Score,
    check_installed,
    evaluate,
    normalizer,
    score_pairs,
)
from tests.conftest import ROOT
from tests.helpers.processes import fastscribe, on_terminal, refused

TEXTS = st.lists(st.sampled_from(["a", "b", "cd", "日本"]), max_size=7).map(" ".join)
PAIRS = st.lists(st.builds(Pair, TEXTS, TEXTS | st.none(), st.tuples(st.sampled_from(["x", "y", None]))), max_size=8)


def distance(a: list[str] | str, b: list[str] | str) -> int:
    """Levenshtein by its definition, row by row."""
    row = list(range(len(b) + 1))
    for i, unit in enumerate(a, start=1):
        above, row = row, [i]
        for j, other in enumerate(b, start=1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (unit != other)))
    return row[-1]


def write(path: Path, *rows: dict | str) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def row(reference: str, hypothesis: str, **fields: object) -> dict:
    return {"audio_filepath": "a.wav", "text": reference, "pred_text": hypothesis, **fields}


FAILED = {"audio_filepath": "f.wav", "text": "gone for good", "error": {"stage": "load", "type": "E", "message": "m"}}


@settings(max_examples=20)
@given(PAIRS)
def test_errors_equal_levenshtein(pairs: list[Pair]) -> None:
    total = evaluate(pairs, num_group_fields=1).total
    words = [(pair.reference.split(), (pair.hypothesis or "").split()) for pair in pairs]
    texts = [(pair.reference, pair.hypothesis or "") for pair in pairs]
    for edits, units in ((total.words, words), (total.characters, texts)):
        assert edits.errors == sum(distance(reference, hypothesis) for reference, hypothesis in units)
        assert edits.units == sum(len(reference) for reference, _ in units)
        assert edits.insertions - edits.deletions == sum(len(h) - len(r) for r, h in units)
    assert total.with_errors == sum(reference != hypothesis for reference, hypothesis in words)
    assert total.without_reference_words == sum(not reference for reference, _ in words)
    assert (total.utterances, total.failed) == (len(pairs), sum(pair.hypothesis is None for pair in pairs))


@settings(max_examples=20)
@given(PAIRS, st.booleans())
def test_groups_sum_to_total(pairs: list[Pair], count_failed: bool) -> None:
    found = evaluate(pairs, num_group_fields=1, count_failed=count_failed)
    [groups] = found.groups
    assert groups.keys() == {pair.groups[0] for pair in pairs}
    assert sum((score.words for score in groups.values()), Edits()) == found.total.words
    assert sum((score.characters for score in groups.values()), Edits()) == found.total.characters
    assert sum(score.failed for score in groups.values()) == found.total.failed
    assert sum(score.utterances for score in groups.values()) == found.total.utterances
    for value, score in groups.items():
        alone = evaluate([pair for pair in pairs if pair.groups == (value,)], 1, count_failed=count_failed)
        assert alone.total == score


@settings(max_examples=20)
@given(PAIRS, st.integers(1, 4), st.integers(1, 20))
def test_blocks_change_nothing(pairs: list[Pair], block_pairs: int, block_characters: int) -> None:
    whole = evaluate(pairs, 1, num_worst=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_BLOCK_PAIRS", block_pairs)
        patch.setattr(scoring, "_BLOCK_CHARACTERS", block_characters)
        assert evaluate(pairs, 1, num_worst=3) == whole


def test_blocks_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_BLOCK_PAIRS", 3)
    monkeypatch.setattr(scoring, "_BLOCK_CHARACTERS", 10)
    pairs = [Pair("a", "b")] * 7 + [Pair("long text", "x")] * 2 + [Pair("a", None)] * 4
    assert [len(block) for block in scoring._blocks(pairs)] == [3, 3, 2, 1, 3, 1]


@settings(max_examples=20)
@given(PAIRS, st.integers(0, 5))
def test_worst_utterances(pairs: list[Pair], num_worst: int) -> None:
    def rank(pair: Pair) -> tuple[int, float]:
        reference, hypothesis = pair.reference.split(), (pair.hypothesis or "").split()
        errors = distance(reference, hypothesis)
        return -errors, -errors / len(reference) if reference else -float("inf")

    wrong = [pair for pair in pairs if pair.hypothesis is not None and pair.reference != pair.hypothesis]
    found = evaluate(pairs, 1, num_worst).worst
    assert [aligned.pair for aligned in found] == sorted(wrong, key=rank)[:num_worst]
    for aligned in found:
        assert " ".join(word for span in aligned.spans for word in span.reference) == aligned.pair.reference
        assert " ".join(word for span in aligned.spans for word in span.hypothesis) == aligned.pair.hypothesis
        assert sum(len(s.reference) for s in aligned.spans if s.kind in ("substitute", "delete")) == (
            aligned.words.substitutions + aligned.words.deletions
        )


def test_standard_error() -> None:
    """It is how much the rate varies over samples of utterances, and does not exist for one utterance."""
    generator = np.random.default_rng(0)
    words = generator.integers(1, 20, 4000)
    errors = generator.binomial(words, generator.beta(1, 4, len(words)))
    pairs = [Pair("a " * n, "a " * (n - e)) for n, e in zip(words.tolist(), errors.tolist(), strict=True)]
    rates = [100 * found.total.words.rate for found in map(evaluate, (pairs[i : i + 50] for i in range(0, 4000, 50)))]
    found = [100 * evaluate(pairs[first : first + 50]).total.standard_error for first in range(0, 4000, 50)]
    assert np.std(rates, ddof=1) == pytest.approx(np.mean(found), rel=0.15)
    assert evaluate([Pair("a b", "a")]).total.standard_error is None
    assert evaluate([Pair("", "a"), Pair("", "")]).total.standard_error is None
    assert evaluate([Pair("a b", "a"), Pair("a b", "a")]).total.standard_error == 0


@pytest.mark.parametrize("pairs", [[], [Pair("", "")], [Pair("", "a b")], [Pair("", None)]], ids=str)
def test_no_words_no_rate(pairs: list[Pair]) -> None:
    found = evaluate(pairs)
    assert found.total.words.rate is None and found.total.characters.rate is None
    assert found.total.words.insertions == sum(len((pair.hypothesis or "").split()) for pair in pairs)
    assert to_object(found, (), True)["wer"] is None
    assert to_table(found, ()).splitlines()[1].split()[4] == "-"


NORMALIZED: dict[NormalizerName, dict[str, str]] = {
    "whisper-en": {
        "Mr. Smith's colour-blind, um, cat won't!": "mister smith is color blind cat will not",
        "twenty-three dollars [noise]": "$23",
        "  \t\n": "",
        "kinda sorta dunno, the cause": "kinda sorta dunno the cause",  # Whisper's own leaves these alone
    },
    "unicode": {
        "हिन्दी में, ‘नमस्ते’!": "हिन्दी में नमस्ते",
        "L’été — 5 % «déjà» d’Aujourd’hui": "l'été 5 déjà d'aujourd'hui",
        "ＦＵＬＬ　ｗｉｄｔｈ、ﬁne。": "full width fine",
        "می\u200cخواهم؟": "میخواهم",
        "İstanbul ISPARTA Straße": "istanbul isparta strasse",
        "ısparta": "isparta",
        "oʻzbek d\u00b4accord": "o'zbek d'accord",
        "كتـــاب ❤\ufe0f": "كتاب",
        "rock 'n' roll's end'": "rock n roll's end",
        "...": "",
    },
    "none": {" A,\t b\u00a0\n C. ": "A, b C."},
}


@pytest.mark.parametrize("name", get_args(NormalizerName))
def test_normalizers(name: NormalizerName) -> None:
    normalize = normalizer(name)
    assert {text: normalize(text) for text in NORMALIZED[name]} == NORMALIZED[name]


def test_long_diff_shortened() -> None:
    words = [f"w{number}" for number in range(100)]
    [aligned] = evaluate([Pair(" ".join(words), " ".join([*words[:50], "new", *words[51:], "more"]))], 0, 1).worst
    shown = marked_diff(aligned)
    assert shown.startswith("w0 w1 w2 w3 w4 w5 … w44 ")
    assert "w49 [-w50-]{+new+} w51" in shown
    assert shown.endswith("w99 {+more+}")


@settings(max_examples=20)
@given(PAIRS, st.integers(10, 40))
def test_side_by_side(pairs: list[Pair], max_columns: int) -> None:
    for aligned in evaluate(pairs, 1, 8).worst:
        lines = list(side_by_side(aligned, max_columns))
        for side, text in ((1, aligned.pair.reference), (2, aligned.pair.hypothesis)):
            assert " ".join(cell[side] for line in lines for cell in line if cell[side]) == text
        assert all(5 + sum(cell.columns + 1 for cell in line) <= max_columns for line in lines)


def test_terminal_escapes_removed() -> None:
    [aligned] = evaluate([Pair("a", "\x1b[31m")], 0, 1).worst
    assert "\x1b" not in marked_diff(aligned)
    found = evaluate([Pair("a", "a", ("\x1b[2J\n日本",))], 1)
    assert "\x1b" not in to_table(found, ("field\x1b",))
    widths = {num_columns(line) for line in to_table(found, ("s",)).splitlines() if "0.00" in line}
    assert len(widths) == 1


def test_unusable_rows_reported(tmp_path: Path) -> None:
    bad = [
        "{",
        "[]",
        {"text": "a"},
        {"pred_text": "a"},
        row("a", "b", offset=3) | {"text": 5},
        row("a", "b", offset=4) | {"pred_text": None},
    ]
    good = [row("a", "b"), row("1" * 5000, "b", offset=1), row("a", "\ud800", offset=2)]
    results = write(tmp_path / "r.jsonl", *bad, "", *good)
    run = read_run([str(results)], Fields(), normalizer("whisper-en"))
    assert [one.line_number for one in (*run.broken, *run.problems)] == [1, 2, 10, 3, 4, 5, 6, 9]
    assert "pred_text is null, not text" in [one.problem for one in run.problems]
    assert all(len(one.problem) < 150 for one in (*run.broken, *run.problems))
    assert len(run.pairs) == 1


def test_references_from_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Match by file first, whatever the current folder; then by the path as written; cuts by their offsets."""
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    manifest = write(
        Path("data/m.jsonl"),
        {"audio_filepath": "a.wav", "text": "A", "meta": {"speaker": "s"}},
        {"audio_filepath": "/elsewhere/b.wav", "text": "B", "meta": "speaker"},
        {"audio_filepath": "c.wav", "text": "C0"},
        {"audio_filepath": "c.wav", "text": "C1", "offset": 1.5, "meta.speaker": "t", "meta": {"speaker": "u"}},
        {"audio_filepath": "./a.wav", "text": "again"},
        {"audio_filepath": "unused.wav", "text": "U"},
        {"text": "no path"},
    )
    results = write(
        Path("r.jsonl"),
        {"audio_filepath": "data/a.wav", "text": "heard a"},
        {"audio_filepath": "/elsewhere/b.wav", "text": "heard b"},
        {"audio_filepath": "c.wav", "text": "R", "pred_text": "heard c1", "offset": 1.5},
        {"audio_filepath": "data/c.wav", "error": {"stage": "probe", "type": "E", "message": "m"}, "text": "not heard"},
        {"audio_filepath": "stranger.wav", "text": "x"},
        {"text": "x"},
    )
    fields = Fields(group_by=("meta.speaker",))
    references = References(str(manifest), fields)
    run = read_run([str(results)], fields, normalizer("none"), references)
    assert [pair[:3] for pair in run.pairs] == [
        ("A", "heard a", ("s",)),
        ("B", "heard b", (None,)),
        ("C1", "heard c1", ("t",)),
        ("C0", None, (None,)),
    ]
    assert [str(one) for one in run.problems] == [
        "r.jsonl: line 5: data/m.jsonl has no row for this audio_filepath and offset",
        "r.jsonl: line 6: no audio_filepath",
    ]
    assert [str(problem).split(": ")[1] for problem in references.problems] == ["line 5", "line 7"]
    assert references.num_unused == 1


def test_references_by_duration(tmp_path: Path) -> None:
    """A result has the manifest's duration or the file's; a row without one reaches to the end."""
    durations = {"two": (2, 8.004), "end": (2, None), "long": (99,), "short": (2,)}
    rows = [
        {"audio_filepath": f"{name}.wav", "text": f"{name} {seconds}"} | ({"duration": seconds} if seconds else {})
        for name, given in durations.items()
        for seconds in given
    ]
    unusable = [{"audio_filepath": "two.wav", "text": "x", "offset": offset, "duration": 8} for offset in (-1, "a")]
    again = [rows[0] | {"text": "again"}, rows[1] | {"note": "the same text"}, rows[1]]
    references = References(str(write(tmp_path / "m.jsonl", *unusable, *rows, *again)), Fields())
    assert references.num_repeated == 2
    assert [str(problem).removeprefix(f"{tmp_path}/m.jsonl: line ") for problem in references.problems] == [
        "1: offset is -1, not a number of seconds from 0",
        "2: offset is 'a', not a number of seconds",
        f'9: the same recording as {tmp_path}/m.jsonl: line 3, which is used: "two 2", not "again"',
    ]
    results = [("two", 2.0), ("two", 8), ("two", 5), ("end", 60), ("long", 60), ("short", 60)]
    rows = [{"audio_filepath": f"{tmp_path}/{name}.wav", "text": "", "duration": length} for name, length in results]
    run = read_run([str(write(tmp_path / "r.jsonl", *rows))], Fields(), str, references)
    assert [pair.reference for pair in run.pairs] == ["two 2", "two 8.004", "end None", "long 99"]
    assert [one.line_number for one in run.problems] == [3, 6]
    assert all(
        one.problem.endswith("for this audio_filepath and offset have other durations or ids") for one in run.problems
    )


def test_references_by_id(tmp_path: Path) -> None:
    """Other ids are other recordings of the same audio; a manifest that has none takes the newest of them."""
    texts = {"x": "one two", "y": "three", "2": "four"}
    parts = [{"audio_filepath": "a.wav", "text": text, "id": id} for id, text in texts.items()]
    again = [parts[0] | {"text": "again"}, {"audio_filepath": "a.wav", "text": "whose?"}]
    references = References(str(write(tmp_path / "m.jsonl", *parts, *again)), Fields())
    assert [one.line_number for one in references.problems] == [4, 5]
    found = [{"audio_filepath": f"{tmp_path}/a.wav", "text": "heard", "duration": 9, "id": id} for id in ("x", 2, "z")]
    results = write(tmp_path / "r.jsonl", *found, found[0] | {"id": "y"}, found[0] | {"id": None})
    run = read_run([str(results)], Fields(), str, references)
    assert [(pair.reference, pair.key.id) for pair in run.pairs] == [("one two", "x"), ("four", "2"), ("three", "y")]
    assert (run.num_older, references.num_unused) == (0, 0)
    assert {one.line_number: one.problem for one in run.problems} == dict.fromkeys(
        (3, 5), f"the rows of {tmp_path}/m.jsonl for this audio_filepath and offset have other durations or ids"
    )
    run = read_run([str(results)], Fields(), str, References(str(write(tmp_path / "n.jsonl", again[1])), Fields()))
    assert [pair.where for pair in run.pairs] == [f"{results}: line 5"] and run.num_older == 4


@pytest.mark.parametrize("shards", [["transcripts.jsonl"], [f"transcripts.shard-{n}-of-2.jsonl" for n in range(2)]])
def test_output_folders(tmp_path: Path, shards: list[str]) -> None:
    for name in (*shards, "transcripts.previous.jsonl"):
        write(tmp_path / name, row("a b", "a c", audio_filepath=name))
    assert len(read_run([str(tmp_path)], Fields(), normalizer("none")).pairs) == len(shards)


def test_results_in_a_store() -> None:
    """A URL is a file or an output folder; a manifest's relative paths count from its own URL."""
    line = json.dumps(row("a b", "a c", audio_filepath="memory://scored/calls/a.wav")).encode() + b"\n"
    written = {"whole/transcripts.jsonl": line, "whole/rows.jsonl": line * 2}
    written |= {f"parts/transcripts.shard-{n}-of-2.jsonl": line for n in range(2)}
    written |= {
        "parts/below/transcripts.shard-0-of-1.jsonl": line,
        "calls.jsonl": b'{"audio_filepath": "calls/a.wav", "text": "R"}',
    }
    for name, data in written.items():
        remote.write_object(f"memory://scored/{name}", data)
    try:
        for name, count in (("whole", 1), ("whole/", 1), ("whole/rows.jsonl", 2), ("parts", 2)):
            run = read_run([f"memory://scored/{name}"], Fields(), str)
            assert len(run.pairs) + run.num_older == count and len(run.pairs) == 1
        references = References("memory://scored/calls.jsonl", Fields())
        [pair] = read_run(["memory://scored/whole"], Fields(), str, references).pairs
        assert pair.reference == "R"
        for name, problem in (("no", "no transcripts.jsonl in this folder"), ("no.jsonl", "no such")):
            with pytest.raises(UsageError, match=f"memory://scored/{name}: {problem}"):
                read_run([f"memory://scored/{name}"], Fields(), str)
    finally:
        for name in written:
            remote.delete_object(f"memory://scored/{name}")


@pytest.mark.parametrize("module", ["jiwer", "whisper_normalizer"])
def test_missing_package(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed("whisper-en")
    monkeypatch.setitem(sys.modules, module, None)
    package, clone = module.replace("_", "-"), "in a clone: pip install '.[eval]'"
    expected = f"evaluate needs {package}: install fastscribe with its extra eval ({clone})"
    with pytest.raises(UsageError) as raised:
        check_installed("whisper-en")
    assert str(raised.value) == expected
    if module == "whisper_normalizer":
        check_installed("none")


def test_each_column_is_described_and_in_json() -> None:
    lines = (ROOT / "docs" / "measure.md").read_text(encoding="utf-8").splitlines()
    begin = lines.index("| column | JSON | what it is |") + 2
    rows = [line.removeprefix("| ").split(" | ")[:2] for line in lines[begin : lines.index("", begin)]]
    assert ", ".join(columns for columns, _ in rows).split(", ") == list(_HEADER[1:])
    keys = counts(Score())
    for columns, named in rows:
        names = named.replace("`", "").split(", ")
        assert len(names) == len(columns.split(", ")), f"{columns}: a name in JSON for each"
        section = names[0].rpartition(".")[0]  # of `words.substitutions`, `.insertions`
        held = keys[section] if section else keys
        assert {name.rpartition(".")[2] for name in names} <= held.keys(), f"{columns}: not in counts()"


def test_table_and_bad_rows(tmp_path: Path) -> None:
    rows = [row("Hello, world", "hello word", speaker="x"), row("uh", "", speaker=3, audio_filepath="u.wav"), FAILED]
    done = fastscribe("evaluate", write(tmp_path / "r.jsonl", *rows), "--group-by", "speaker", "--diff", 5)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "normalizer whisper-en; failed rows: 1, counted as deleted words"
    assert lines[3].split() == ["all", "3", "1", "5", "80.00", "20.78", "1", "0", "3", "58.33", "66.67"]
    assert [line.split()[0] for line in lines[5:9]] == ["speaker", "3", "x", "(none)"]
    assert lines[-1] == "hello [-world-]{+word+}"
    assert "a.wav" in lines[-2] and "line 1): 1 error in 2 words" in lines[-2]
    no_text = [row("", "a", audio_filepath=f"{n}.wav") | {"text": n} for n in range(30)]
    done = fastscribe("evaluate", write(tmp_path / "r.jsonl", *rows, *["{"] * 30, *no_text), "--skip-failed")
    assert done.returncode == 1
    assert done.stdout.startswith("normalizer whisper-en; failed rows: 1, left out\n")
    errors = done.stderr.splitlines()
    assert len(errors) == 21
    assert f"{tmp_path / 'r.jsonl'}: line 4 (and 29 more rows): not JSON" in errors[0]
    assert errors[1] == f"fastscribe: {tmp_path / 'r.jsonl'}: line 34: text is 0, not text"
    assert errors[-1] == "fastscribe: and 11 more rows that cannot be used"


def test_failed_rows_and_broken_lines_can_be_left_out(tmp_path: Path) -> None:
    """Also the failed row of a manifest's broken line, which has no text; but no row that lacks its reference."""
    error = {"stage": "input", "type": "ManifestError", "message": "m.jsonl: line 2: not JSON"}
    results = write(tmp_path / "r.jsonl", row("a b", "a"), {"audio_filepath": "m.jsonl", "error": error}, "{")
    manifest = write(tmp_path / "m.jsonl", {"audio_filepath": "a.wav", "text": "a b"}, "no JSON")
    failed = (
        f"{results}: line 2: no reference of this failed row (m.jsonl: line 2: not JSON): --skip-failed leaves it out"
    )
    for references, own in (
        ((), failed),
        (("--manifest", manifest), f"{results}: line 2: {manifest} has no row for this"),
    ):
        done = fastscribe("evaluate", results, *references)
        assert done.returncode == 1 and own in done.stderr and "50.00" in done.stdout
        skipped = fastscribe("evaluate", results, *references, "--skip-failed", "--json")
        found = json.loads(skipped.stdout)
        assert (skipped.returncode, found["utterances"], found["failed"], found["wer"]) == (0, 1, 1, 0.5)
        assert len(skipped.stderr.splitlines()) == found["unusable_rows"] == len(done.stderr.splitlines()) - 1
    write(results, row("a b", "a"), row("x", "x", audio_filepath="b.wav"))
    assert fastscribe("evaluate", results, "--manifest", manifest, "--skip-failed").returncode == 1


def test_the_newest_result_of_a_recording_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other offsets, tracks, channels, durations and ids are other recordings, and so are rows without a path."""
    monkeypatch.chdir(tmp_path)
    parts = row("a", "old"), row("a", "a", offset=1), row("a", "a", audio_track=1), row("a", "a", duration=2)
    others = (
        row("a", "left", audio_channel=0),
        row("a", "right", audio_channel=1),
        row("a", "b", id=1),
        row("a", "c", id=2),
    )
    run = read_run([str(write(tmp_path / "o.jsonl", *others))], Fields(), str)
    assert [pair.hypothesis for pair in run.pairs] == ["left", "right", "b", "c"]
    twice = row("a", "new", audio_filepath=str(tmp_path / "a.wav"))
    nameless = {"text": "a", "pred_text": "a"}
    run = read_run([str(write(tmp_path / "r.jsonl", *parts, twice, nameless, nameless))], Fields(), str)
    assert [pair.hypothesis for pair in run.pairs] == ["a", "a", "a", "new", "a", "a"]
    assert (run.num_older, run.problems) == (1, [])
    manifest = write(tmp_path / "m.jsonl", {"audio_filepath": "a.wav", "text": "A", "duration": 2})
    run = read_run(["r.jsonl"], Fields(), str, References(str(manifest), Fields()))
    assert [(pair.reference, pair.hypothesis) for pair in run.pairs] == [("A", "new")]
    assert run.num_older == 3 and {one.line_number for one in run.problems} == {2, 6, 7}


def test_a_failed_row_without_a_duration_is_of_its_recording(tmp_path: Path) -> None:
    """The newest counts in either order. Where two others begin there, it is of none of them, and ids tell rows apart."""
    done = {
        name: row("gone", "gone", audio_filepath="f.wav", duration=seconds) for name, seconds in (("a", 5), ("b", 2))
    }
    for rows, hypotheses, num_older in (
        ((FAILED, done["a"]), ["gone"], 1),
        ((done["a"], FAILED), [None], 1),
        ((FAILED, done["a"], FAILED), [None], 2),
        ((FAILED, done["a"], done["b"]), [None, "gone", "gone"], 0),
        ((FAILED | {"id": 1}, done["a"] | {"id": 2}), [None, "gone"], 0),
        ((FAILED | {"offset": 1}, done["a"]), [None, "gone"], 0),
        ((row("gone", "lasts?", audio_filepath="f.wav"), done["a"]), ["lasts?", "gone"], 0),
    ):
        runs = [str(write(tmp_path / str(number), one)) for number, one in enumerate(rows)]
        run = read_run(runs, Fields(), str)
        assert ([pair.hypothesis for pair in run.pairs], run.num_older) == (hypotheses, num_older)


def test_what_a_user_should_know(tmp_path: Path) -> None:
    """Runs that are pooled, parts of files, and merged results that lack shards."""
    two = row("a b", "a c", offset=33.1), row("a", "a", audio_filepath="b.wav")
    write(tmp_path / "transcripts.jsonl", *two)
    (tmp_path / "report.json").write_text(json.dumps({"shards_missing": [2], "shards_incomplete": [0]}))
    other = write(tmp_path / "other.jsonl", *two, row("c", "c", offset=1))
    done = fastscribe("evaluate", tmp_path, other, "--diff", 1)
    assert (done.returncode, done.stderr.splitlines()) == (
        0,
        [
            f"fastscribe: {tmp_path}: merged without all results; missing or incomplete shards: 0, 2",
            "fastscribe: 2 rows left out of recordings that come again: the last one counts; to compare two runs use --against",
        ],
    )
    quiet = fastscribe("evaluate", tmp_path, other, "--diff", 1, "-q")
    assert quiet.stderr.splitlines() == done.stderr.splitlines()[:1]
    assert done.stdout == f"normalizer whisper-en\n\n{quiet.stdout}"
    assert "a.wav@33.1 (" in done.stdout and "line 1): 1 error in 2 words: " in done.stdout
    [worst] = json.loads(fastscribe("evaluate", other, "--json", "--diff", 1).stdout)["worst"]
    assert (worst["audio_filepath"], worst["offset"]) == ("a.wav", 33.1)


def test_json_from_stdin() -> None:
    rows = "".join(json.dumps(one) + "\n" for one in (row("A b", "a b", lang=True), FAILED))
    arguments = ("--json", "--normalizer", "none", "--group_by", "lang", "--diff", 1)
    done = fastscribe("evaluate", "-", *arguments, stdin=rows)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert (found["wer"], found["cer"], found["sentence_error_rate"]) == (0.8, 0.875, 1.0)
    assert found["words"] == {"reference_words": 5, "errors": 4, "substitutions": 1, "insertions": 0, "deletions": 3}
    assert [(group["value"], group["failed"]) for group in found["groups"]["lang"]] == [("true", 0), (None, 1)]
    assert (found["normalizer"], found["failed"], found["failed_count_as_deleted"]) == ("none", 1, True)
    assert [one["hypothesis"] for one in found["worst"]] == ["a b"]
    assert found["versions"].keys() == {"fastscribe", "jiwer"}


def test_manifest_problems_reported(tmp_path: Path) -> None:
    rows = ({"audio_filepath": f"{name}.wav", "text": name} for name in "ab")
    manifest = write(tmp_path / "m.jsonl", *rows, "{")
    results = write(tmp_path / "r.jsonl", {"audio_filepath": "a.wav", "text": "a"})
    done = fastscribe("evaluate", results, "--manifest", manifest, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["unusable_rows"] == json.loads(done.stdout)["references_without_result"] == 1
    broken, unused = done.stderr.splitlines()
    assert broken.startswith(f"fastscribe: {manifest}: line 3: not JSON")
    assert unused == f"fastscribe: {manifest}: 1 row has no result; it is not counted"


@pytest.mark.parametrize(
    ("rows", "options", "named"),
    [
        ([], [], "nothing to score"),
        ([FAILED], ["--skip-failed"], "1 failed row left out"),
        ([row("a", "a")], ["--group-by", "speakr"], "speakr"),
        ([row("a", "a")], ["--manifest", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        ([row("a", "a")], ["nowhere"], "nowhere: no such file"),
        ([row("a", "a")], [os.path.dirname(__file__)], "no transcripts.jsonl in this folder"),
        ([row("a", "a")], ["--normalizer", "german"], "german"),
        ([row("a", "a")], ["--diff", "-1"], "--diff"),
    ],
    ids=str,
)
def test_wrong_usage(tmp_path: Path, rows: list, options: list, named: str) -> None:
    assert named in refused("evaluate", write(tmp_path / "r.jsonl", *rows), *options)


@pytest.mark.posix
@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_on_terminal_only(tmp_path: Path, variables: dict[str, str], coloured: bool) -> None:
    """stdout is a pseudo-terminal here."""
    results = write(tmp_path / "r.jsonl", row("good day", "good may sir"))
    code, seen = on_terminal("evaluate", results, "--diff", 1, stream="stdout", columns=80, **variables)
    assert code == 0
    assert (b"\x1b[" in seen) == coloured
    assert (b"ref " in seen) == coloured
    assert (b"[-day-]{+may+}" in seen or b"{+sir+}" in seen) != coloured


@pytest.mark.parametrize("name", get_args(NormalizerName))
def test_spaces_of_scripts_without_spaces_and_dots(name: NormalizerName) -> None:
    """Whether a space stands at the border to another script is a matter of taste."""
    normalize = normalizer(name)
    for reference, hypothesis in (
        ("今天天气", "今天 天气"),
        ("สวัสดีครับ", "สวัสดี ครับ"),
        ("用iPhone拍2024年", "用 iPhone 拍 2024 年"),
        ("wait… what", "wait... what"),
    ):
        [scored] = score_pairs([Pair(normalize(reference), normalize(hypothesis))])
        assert (scored.words.errors, scored.characters.errors) == (0, 0)
    [scored] = score_pairs([Pair(normalize("ab c"), normalize("abc"))])
    assert (scored.words.errors, scored.characters.errors) == (2, 1)


def test_recordings_that_lie_elsewhere_are_found_by_the_end_of_their_paths(tmp_path: Path) -> None:
    """The longest common end decides; where two are as long, none is right. A result that has a row by its path keeps it."""
    names = ("a/x", "b/x", "c/d/y", "e/d/y", "z", "v/w", "only/t")
    manifest = write(tmp_path / "m.jsonl", *({"audio_filepath": f"/data/{name}.wav", "text": name} for name in names))
    references = References(str(manifest), Fields())
    paths = (
        "/mnt/b/x.wav",
        "other/z.wav",
        "/mnt/d/y.wav",
        "/mnt/x.wav",
        "/mnt/gone.wav",
        "/data/a/x.wav",
        "/mnt/a/x.wav",
    )
    twice = ("/one/w.wav", "/two/w.wav", "/mnt/t.wav", "/mnt/only/t.wav", "/mnt/only/t.wav")
    results = write(tmp_path / "r.jsonl", *({"audio_filepath": path, "text": "heard"} for path in (*paths, *twice)))
    run = read_run([str(results)], Fields(), str, references)
    found = {pair.audio_path: pair.reference for pair in run.pairs}
    assert found == {
        "/mnt/b/x.wav": "b/x", "other/z.wav": "z", "/data/a/x.wav": "a/x", "/mnt/only/t.wav": "only/t"
    }  # fmt: skip
    assert (references.num_by_end, references.by_end) == (3, ("/mnt/b/x.wav", "/data/b/x.wav"))
    assert (run.num_older, references.num_unused) == (1, 3)
    instead = "give a manifest with the paths of these results"
    assert {one.line_number: one.problem for one in run.problems} == {
        3: f"several rows of {manifest} have paths that end like this one: {instead}",
        4: f"several rows of {manifest} have paths that end like this one: {instead}",
        5: f"{manifest} has no row for this audio_filepath and offset",
        7: f"{manifest} has no row for this audio_filepath and offset",
        8: f"the row of {manifest} whose path ends like this one's may be another result's: {instead}",
        9: f"the row of {manifest} whose path ends like this one's may be another result's: {instead}",
        10: f"{manifest} has no row for this audio_filepath and offset",
    }


def test_a_manifest_of_windows_names_recordings_by_the_end_too(tmp_path: Path) -> None:
    manifest = write(
        tmp_path / "m.jsonl", *({"audio_filepath": rf"D:\data\{name}\x.wav", "text": name} for name in "ab")
    )
    results = write(tmp_path / "r.jsonl", {"audio_filepath": "/mnt/b/x.wav", "text": "heard"})
    run = read_run([str(results)], Fields(), str, References(str(manifest), Fields()))
    assert [pair.reference for pair in run.pairs] == ["b"] and not run.problems
