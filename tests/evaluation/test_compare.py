"""Two runs over the same recordings: pairing, the interval, what changed, and the command."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.evaluation import compare as comparing
from fastscribe.evaluation.compare import MIN_RECORDINGS, bootstrap_interval, compare, match, sign_flip_p
from fastscribe.evaluation.report import comparison_table
from fastscribe.evaluation.results import Fields, References, read_run
from fastscribe.evaluation.scores import Pair, Recording, evaluate
from tests.evaluation.test_evaluate import FAILED, TEXTS, row, write
from tests.helpers.processes import fastscribe, refused

RUNS = st.lists(st.tuples(TEXTS, TEXTS | st.none(), TEXTS | st.none()), min_size=1, max_size=8)


def run_of(run: list, side: int) -> list[Pair]:
    return [Pair(texts[0], texts[side], key=Recording(str(n))) for n, texts in enumerate(run)]


@settings(max_examples=40)
@given(RUNS)
def test_scores_equal_those_of_each_run(run: list) -> None:
    result, baseline = run_of(run, 1), run_of(run, 2)
    found = compare(match(result[::-1], baseline, count_failed=True))
    assert (found.result, found.baseline) == (evaluate(result).total, evaluate(baseline).total)
    assert found.same_words + found.same_errors + len(found.better) + len(found.worse) == len(run)
    assert all(change.more_errors < 0 for change in found.better) and all(c.more_errors > 0 for c in found.worse)
    errors = found.result.words.errors - found.baseline.words.errors
    assert sum(change.more_errors for change in (*found.better, *found.worse)) == errors
    sizes = [abs(change.more_errors) for change in found.worse]
    assert sizes == sorted(sizes, reverse=True)
    assert found.interval is None


@settings(max_examples=40)
@given(RUNS)
def test_failed_recordings_left_out_of_both(run: list) -> None:
    found = match(run_of(run, 1), run_of(run, 2), count_failed=False)
    kept = [str(n) for n, texts in enumerate(run) if None not in texts]
    assert [pair.key.file for pair in found.result] == [pair.key.file for pair in found.baseline] == kept
    assert found.num_skipped == len(run) - len(kept)


def test_a_failed_row_that_is_left_out_needs_no_reference(tmp_path: Path) -> None:
    failed = {"audio_filepath": "f.wav", "error": FAILED["error"]}
    before = write(tmp_path / "before.jsonl", row("a b", "a"), row("gone", "gone", audio_filepath="f.wav"))
    now = write(tmp_path / "now.jsonl", row("a b", "a b"), failed)
    done = fastscribe("evaluate", now, "--against", before, "--skip-failed", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["failed_left_out"], found["wer_difference"]) == (0, 1, -0.5)


def test_stdin_is_one_run_only() -> None:
    assert "- on both sides" in refused("evaluate", "-", "--against", "-")


def test_interval_is_that_of_drawing_recordings_one_by_one() -> None:
    rng = np.random.default_rng(7)
    words = rng.integers(1, 40, 300)
    more = rng.binomial(words, 0.2) - rng.binomial(words, 0.15)
    drawn = rng.integers(300, size=(5000, 300))
    low, high = np.percentile(more[drawn].sum(1) / words[drawn].sum(1), (2.5, 97.5))
    assert bootstrap_interval(more.tolist(), words.tolist()) == pytest.approx((low, high), abs=0.06 * (high - low))


def test_interval() -> None:
    """It needs enough recordings, holds the difference, mirrors, is the same each time, and is that of a normal mean."""
    rng = np.random.default_rng(3)
    more, words = rng.integers(-3, 4, 400), np.full(400, 10)
    assert bootstrap_interval([1] * (MIN_RECORDINGS - 1), [5] * (MIN_RECORDINGS - 1)) is None
    assert bootstrap_interval([1] * 30, [0] * 30) is None
    assert bootstrap_interval([1] * 30, [5] * 30) == pytest.approx((0.2, 0.2))
    low, high = bootstrap_interval(more.tolist(), words.tolist()) or (1, 0)
    assert (low, high) == bootstrap_interval(more.tolist(), words.tolist())
    mirrored = bootstrap_interval((-more).tolist(), words.tolist())
    assert mirrored == pytest.approx((-high, -low))
    half = 1.96 * more.std() / np.sqrt(400) / 10
    assert (low, high) == pytest.approx((more.mean() / 10 - half, more.mean() / 10 + half), abs=0.1 * half)
    few_words = bootstrap_interval([1, *[0] * 29], [1, *[0] * 29])
    assert few_words == pytest.approx((1.0, 1.0))  # draws without words have no rate


@given(st.lists(st.integers(-9, 9), max_size=8))
def test_signs(more: list[int]) -> None:
    """It is the count over all choices of signs. Drawn choices agree. Zeros, and all signs at once, change nothing."""
    sums = [sum(choice) for choice in itertools.product(*((size, -size) for size in more))]
    expected = sum(abs(total) >= abs(sum(more)) for total in sums) / len(sums)
    assert sign_flip_p(more) == pytest.approx(expected)
    assert sign_flip_p([*more, *[0] * 30]) == sign_flip_p([-size for size in more]) == sign_flip_p(more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "_EXACT_RECORDINGS", 0)
        assert sign_flip_p(more) == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("num_changed", [4, 5, 6])
def test_no_verdict_on_few_changes(num_changed: int) -> None:
    """The interval excludes 0 with 4 of 71 recordings in one direction, which is no evidence; with 6 it is."""
    pairs = [Pair("a b", "a b", key=Recording(str(n))) for n in range(71)]
    worse = [pair._replace(hypothesis="a") if n < num_changed else pair for n, pair in enumerate(pairs)]
    found = compare(match(worse, pairs, count_failed=True))
    assert found.interval is not None and found.interval.low > 0
    assert found.sign_flip_p == 2 / 2**num_changed
    assert found.is_real == (num_changed == 6)
    line = comparison_table(found, "now", "before").splitlines()[-2]
    expected = (
        f"no verdict: only {num_changed} recordings have more or fewer errors, which may be chance (sign-flip test, p ="
    )
    assert ("0 is outside" if num_changed == 6 else expected) in line


def test_two_runs_in_different_places_are_compared_by_the_rows_of_a_manifest(tmp_path: Path) -> None:
    manifest = write(tmp_path / "m.jsonl", {"audio_filepath": "/data/a.wav", "text": "a b"})
    now, before = (
        write(tmp_path / name, row("", "a b", audio_filepath=f"/{name}/a.wav"), row("", "", audio_filepath=""))
        for name in ("now", "before")
    )
    runs = [
        read_run([str(one)], Fields(), str, References(str(manifest), Fields()), is_compared=True)
        for one in (now, before)
    ]
    matched = match(runs[0].pairs, runs[1].pairs, count_failed=True)
    assert [pair.audio_path for pair in (*matched.result, *matched.baseline)] == ["/now/a.wav", "/before/a.wav"]
    run = read_run([str(now)], Fields(), str, is_compared=True)
    assert [one.problem for one in run.problems] == ["no audio_filepath, by which two runs are compared"]


def test_unusable_rows_take_no_other_rows_place(tmp_path: Path) -> None:
    """A manifest's row with an unusable offset has a recording of its own in two runs. Parts differ by their durations too."""

    def problem(number: int, text: str) -> dict:
        return {"stage": "input", "type": "ManifestError", "message": f"m.jsonl: line {number}: {text}"}

    bad = [
        {"audio_filepath": "a.wav", "text": "x", "offset": -1, "error": problem(1, "offset is -1.0")},
        {"audio_filepath": "m.jsonl", "text": "y", "error": problem(2, "no audio_filepath")},
        {"audio_filepath": "m.jsonl", "text": "z", "error": problem(3, "no audio_filepath")},
    ]
    good = [row("a", "a", duration=9), row("b", "b", duration=2), row("c", "c", offset=-1.0)]
    runs = []
    for name, rows in (("1", [*bad, *good]), ("2", [*good[::-1], *bad])):
        run = read_run([str(write(tmp_path / name, *rows))], Fields(), str, is_compared=True)
        assert not run.problems
        runs.append(run.pairs)
    matched = match(*runs, count_failed=True)
    assert [pair.reference for pair in matched.result] == ["x", "y", "z", "a", "b", "c"]
    assert not matched.only_result and not matched.only_baseline
    whole = [Pair("a", "a", key=runs[0][3].key._replace(duration=9_004))]
    assert match(whole, [runs[0][3]], count_failed=True).result == match(whole, whole, count_failed=True).result
    assert [len(part) for part in match(whole, runs[0][3:5], count_failed=True)[:4]] == [1, 1, 0, 1]
    ids = [Pair("a", id, key=runs[0][3].key._replace(id=id)) for id in "xy"]
    matched = match(ids, ids[::-1], count_failed=True)
    assert matched.result == matched.baseline == ids


def test_ids_that_differ_are_other_recordings() -> None:
    """A run may lack ids, or know other durations. Each row of the baseline is used once."""

    def run(*ids: str, duration: int = 9) -> list[Pair]:
        return [Pair(id, id, key=Recording("a.wav", duration=duration, id=id)) for id in ids]

    for ours, theirs, both in (
        (run("x", "y"), run("x"), [("x", "x")]),
        (run("y", "x"), run("x", duration=8), [("x", "x")]),
        (run("p", "q"), run("r", "q"), [("q", "q")]),
        (run("p"), run("r"), []),
        (run("x"), run(""), [("x", "")]),
        (run("", "x"), run("x", ""), [("", ""), ("x", "x")]),
        (run("", "x"), run("x"), [("x", "x")]),
        (run("x", "y"), run(""), [("x", "")]),
    ):
        found = list(comparing._same_recordings(ours, theirs))
        assert [(one.reference, other.reference) for one, other in found] == both
    matched = match(run("p", "q"), run("r", "q"), count_failed=True)
    assert [[pair.reference for pair in pairs] for pairs in matched[:4]] == [["q"], ["q"], ["p"], ["r"]]


def two_runs(folder: Path) -> tuple[Path, Path]:
    names = [f"{n}.wav" for n in range(30)]
    result = [
        row("a good day", "a good day" if n else "a bad day", audio_filepath=name) for n, name in enumerate(names)
    ]
    before = [
        row("a good day", "good day" if n % 2 else "a good day", audio_filepath=name) for n, name in enumerate(names)
    ]
    only = row("x", "x", audio_filepath="new.wav", offset=2)
    return write(folder / "now.jsonl", *result, only), write(folder / "before.jsonl", *before)


def test_table(tmp_path: Path) -> None:
    now, before = two_runs(tmp_path)
    done = fastscribe("evaluate", now, "--against", before, "--diff", 1)
    assert done.returncode == 1
    assert done.stderr == f"fastscribe: 1 recording is in {now} only, and not compared: new.wav@2\n"
    lines = done.stdout.splitlines()
    assert [line.split()[-8:-6] for line in lines[3:5]] == [["90", "1.11"], ["90", "16.67"]]
    assert lines[6].startswith("WER difference: -15.56 points; 95 % interval -2") and "0 is outside" in lines[6]
    assert lines[7].startswith("recordings: 15 better, 1 worse, 0 with other words but as many errors, 14 equal")
    assert lines[9:] == [
        "WORSE",
        "",
        "0.wav: 0 -> 1 errors in 3 words",
        "  against a good day",
        "  now     a [-good-]{+bad+} day",
        "",
        "BETTER (1 of 15; --diff N shows N)",
        "",
        "1.wav: 1 -> 0 errors in 3 words",
        "  against [-a-] good day",
        "  now     a good day",
    ]


def test_json(tmp_path: Path) -> None:
    now, before = two_runs(tmp_path)
    found = json.loads(fastscribe("evaluate", before, "--against", now, "--json").stdout)
    assert (found["wer_difference"], found["only_in_baseline"]) == (0.155556, ["new.wav@2"])
    low, high = found["wer_difference_interval_95"]
    assert 0 < low < 0.155556 < high
    assert (len(found["worse"]), found["recordings_better"]) == (15, 1)
    [better] = found["better"]
    assert (better["audio_filepath"], better["more_errors"]) == ("0.wav", -1)
    assert (better["result"]["text"], better["baseline"]["text"]) == ("a good day", "a bad day")
    assert found["difference_is_real"] and found["sign_flip_p"] < 0.01
    few = write(tmp_path / "few.jsonl", row("a", "b", audio_filepath="0.wav"))
    done = fastscribe("evaluate", few, "--against", few)
    assert done.returncode == 0 and "WER difference: none, the texts are equal" in done.stdout
    done = fastscribe("evaluate", few, "--against", write(tmp_path / "f.jsonl", row("a", "a", audio_filepath="0.wav")))
    assert "no interval: 1 recording is too few, it takes 20" in done.stdout


def test_groups(tmp_path: Path) -> None:
    """Each group has its own comparison, as if it were compared alone."""
    speakers = {"x": 25, "y": 2}
    names = [(speaker, f"{speaker}{n}.wav") for speaker, count in speakers.items() for n in range(count)]
    before, now = (
        [row("a b", hypothesis, audio_filepath=name, speaker=speaker) for speaker, name in names]
        for hypothesis in ("a", "a b")
    )
    files = [write(tmp_path / name, *rows) for name, rows in (("now", now), ("before", before))]
    done = fastscribe("evaluate", files[0], "--against", files[1], "--group-by", "speaker", "--diff", 0)
    assert done.stdout.splitlines()[-5:] == [
        "speaker",
        "  x: WER 0.00 % against 50.00 % of 50 words",
        "    WER difference: -50.00 points; 95 % interval -50.00 to -50.00 (0 is outside; 25 recordings)",
        "  y: WER 0.00 % against 50.00 % of 4 words",
        "    WER difference: -50.00 points; no interval: 2 recordings are too few, it takes 20",
    ]
    done = fastscribe("evaluate", files[0], "--against", files[1], "--group-by", "speaker", "--json")
    x, y = json.loads(done.stdout)["groups"]["speaker"]
    assert (x["value"], x["recordings_better"], y["value"], y["wer_difference"]) == ("x", 25, "y", -0.5)
    assert y["wer_difference_interval_95"] is None and "better" not in y


@pytest.mark.parametrize(
    ("other", "options", "problem"),
    [
        (row("b", "a"), [], "different references for 1 recording: a.wav"),
        (row("a", "a", audio_filepath="b.wav"), [], "no recording is in both runs; "),
        (row("a", "a", id="other"), [], "now.jsonl has a.wav (id first) and "),
        ({**FAILED, "audio_filepath": "a.wav", "text": "a"}, ["--skip-failed"], "one of the runs failed on each"),
        ("", [], "no row with both reference and hypothesis in one of the runs"),
        (row("a", "a"), ["--group-by", "x"], "--group-by x: no row has this field"),
        (
            row("a", "a"),
            ["--group-by", "x,y"],
            "--group-by x,y: no row has this field; for several fields, repeat --group-by",
        ),
    ],
    ids=str,
)
def test_refused(tmp_path: Path, other: dict | str, options: list[str], problem: str) -> None:
    now, before = write(tmp_path / "now.jsonl", row("a", "a", id="first")), write(tmp_path / "before.jsonl", other)
    assert problem in refused("evaluate", now, "--against", before, *options)
