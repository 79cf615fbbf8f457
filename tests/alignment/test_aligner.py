"""Forced alignment of recordings: NeMo's frames, errors of the text, long recordings, and lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from fastscribe import Failure, Options, Transcriber, Transcript, UsageError
from fastscribe.alignment import text_aligner as alignment
from fastscribe.alignment.aligner import Aligner
from fastscribe.alignment.script import Counts
from fastscribe.errors import CheckpointError
from fastscribe.results.formats.writers import render, to_object
from fastscribe.results.stored import to_result
from tests.conftest import AUDIO, DATA, MODELS

NEMO = json.loads((DATA / "alignment" / "nemo.json").read_text(encoding="utf-8"))
FILES = sorted(AUDIO.glob("0*.flac"))
ROWS = [json.loads(line) for line in (DATA / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
TEXTS = {Path(row["audio_filepath"]).name: row["text"] for row in ROWS}


@pytest.fixture(scope="module")
def aligner() -> Aligner:
    return Aligner.load(MODELS / "hybrid" / "model.nemo", "cpu", "fp32")


def manifest(folder: Path, texts: dict[str, str]) -> Path:
    file = folder / "texts.jsonl"
    rows = [{"audio_filepath": str(AUDIO / name), "text": text, "speaker": "a"} for name, text in texts.items()]
    rows = [{key: value for key, value in row.items() if value is not None} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def aligned(aligner: Aligner, folder: Path, texts: dict[str, str]) -> dict[str, Transcript]:
    found = {
        Path(one.audio.path).name: one for one in aligner.align(manifest(folder, texts)) if isinstance(one, Transcript)
    }
    assert found.keys() == texts.keys()
    return found


@pytest.mark.parametrize("name", ["ctc", "hybrid", "quartznet"])
def test_words_have_nemos_frames(name: str, tmp_path: Path) -> None:
    """All recordings in one batch, and NeMo's one by one. NeMo's word ends with the token of its full stop."""
    aligner = Aligner.load(MODELS / name / "model.nemo", "cpu", "fp32")
    frame_s = aligner._config.frame_s
    found = aligned(aligner, tmp_path, {file: TEXTS[file] for file in NEMO[name]})
    for file, expected in NEMO[name].items():
        transcript = found[file]
        assert not transcript.gaps and not any(word.missing for word in transcript.words)
        assert [word.text for word in transcript.words] == TEXTS[file].split()
        last_s = transcript.audio.duration_s
        nexts = [*(first for _, first, _ in expected[1:]), np.inf]
        for word, after, (_, first, end) in zip(transcript.words, nexts, expected, strict=True):
            own = [token for token in transcript.tokens if first <= round(token.start_s / frame_s) < after]
            end_s = max(token.end_s for token in own if token.piece.strip())
            assert round(own[0].start_s / frame_s) == first and end_s == pytest.approx(min(end * frame_s, last_s))
            assert word.end_s == end_s or (word.end_s < end_s and not word.text[-1].isalnum())
            assert word.start_s == own[0].start_s or (word.start_s > own[0].start_s and own[0].piece == "▁")


def test_a_full_stop_in_the_pause_does_not_lengthen_its_word(tmp_path: Path) -> None:
    """The packaged model writes the full stop up to two seconds late."""
    clip_S, rate = soundfile.read(FILES[0], dtype="float32")
    rng = np.random.default_rng(0)
    noise_S = [1e-4 * rng.standard_normal(int(length_s * rate)) for length_s in (2.0, 1.0)]
    soundfile.write(tmp_path / "a.flac", np.concatenate([clip_S, noise_S[0], clip_S, noise_S[1]]), rate)
    (tmp_path / "a.txt").write_text("\n".join([TEXTS[FILES[0].name].rstrip(".") + "."] * 2), encoding="utf-8")
    (found,) = Aligner.load("default", "cpu", "fp32").align(tmp_path / "a.flac", tmp_path / "a.txt")
    assert isinstance(found, Transcript)
    length_s = len(clip_S) / rate
    loud = np.flatnonzero(np.abs(clip_S) > np.abs(clip_S).max() / 20)[-1] / rate
    ends_s = [segment.end_s - start_s for segment, start_s in zip(found.segments, (0.0, length_s + 2.0), strict=True)]
    assert ends_s == pytest.approx([loud, loud], abs=0.2)


def test_music_before_the_speech_does_not_lengthen_the_first_word(tmp_path: Path) -> None:
    """The packaged model writes a space, which is a part of the first word, anywhere before it."""
    clip_S, rate = soundfile.read(FILES[0], dtype="float32")
    notes = (
        np.sin(2 * np.pi * pitch * np.arange(rate // 4) / rate) * np.exp(-np.arange(rate // 4) / rate * 3)
        for pitch in (262, 330, 392, 523, 440, 349) * 4
    )
    soundfile.write(tmp_path / "a.flac", np.concatenate([*(0.2 * note for note in notes), clip_S]), rate)
    (tmp_path / "a.txt").write_text(TEXTS[FILES[0].name], encoding="utf-8")
    (found,) = Aligner.load("default", "cpu", "fp32").align(tmp_path / "a.flac", tmp_path / "a.txt")
    assert isinstance(found, Transcript)
    loud = np.flatnonzero(np.abs(clip_S) > np.abs(clip_S).max() / 20)[0] / rate
    assert found.tokens[0].start_s < 1.0 and found.words[0].start_s == pytest.approx(6.0 + loud, abs=0.3)
    (heard,) = Transcriber.load("default", "cpu", "fp32").transcribe([tmp_path / "a.flac"])
    assert isinstance(heard, Transcript)
    assert heard.tokens[0].start_s < 1.0 and heard.words[0].start_s == pytest.approx(6.0 + loud, abs=0.3)


@pytest.mark.parametrize(
    ("frames", "span_s"),
    [
        # Of the space before the word, and of its letters.
        ((0, 5, 21, 22, 23), (0.42, 2.4)),
        ((0, 5, 27, 28, 29), (2.62, 3.0)),
        ((4, 5, 6, 7, 29), (0.42, 0.88)),
        ((5, 6, 7, 8, 9), (0.52, 1.0)),
    ],
)
def test_a_letter_far_from_its_word_is_none_of_it(
    aligner: Aligner, frames: tuple[int, ...], span_s: tuple[float, float]
) -> None:
    text_aligner = aligner.text_aligner
    script = text_aligner._speller.script("Often")
    job: Any = SimpleNamespace(
        script=script,
        token_spans={token: (frame, frame + 1) for token, frame in enumerate(frames)},
        frames=SimpleNamespace(span_s=lambda first, end: (first / 10, end / 10)),
        audio=SimpleNamespace(last_s=9.0),
    )
    probabilities = dict.fromkeys(range(len(script.token_ids)), 0.5)
    assert text_aligner._word_span_s(job, probabilities) == pytest.approx(span_s)


@pytest.mark.parametrize("names", [("Anna", "Berta"), ("speaker 1", "speaker 2")])
def test_a_name_before_a_line_is_a_speaker(aligner: Aligner, tmp_path: Path, names: tuple[str, str]) -> None:
    """As `-f txt` writes a dialogue: a paragraph each, with a blank line between."""
    words = TEXTS[FILES[0].name].split()
    parts = [" ".join(words[:4]), " ".join(words[4:6]), " ".join(words[6:])]
    text = "\n\n".join(f"{name}: {part}" for name, part in zip((*names, names[0]), parts, strict=True)) + "\n"
    plain, found = (aligned(aligner, tmp_path, {FILES[0].name: one})[FILES[0].name] for one in (" ".join(words), text))
    assert found.speakers == names and [one.speaker for one in found.segments] == [*names, names[0]]
    assert [(one.text, one.start_s) for one in found.words] == [(one.text, one.start_s) for one in plain.words]
    assert [one.line for one in found.segments] == [1, 3, 5] and not any(one.missing for one in found.words)
    assert render(found, "txt") == text
    stored = to_result(to_object(found))
    assert isinstance(stored, Transcript) and render(stored, "srt") == render(found, "srt")
    assert f"\n{names[1]}: {parts[1]}\n" in render(found, "srt")


@pytest.mark.parametrize("format", ["srt", "vtt", "ass", "md"])
def test_speakers_come_back_from_what_a_run_writes(aligner: Aligner, tmp_path: Path, format: str) -> None:
    words = TEXTS[FILES[0].name].split()
    text = f"Anna: {' '.join(words[:4])}\n\nBerta: {' '.join(words[4:])}\n"
    written = aligned(aligner, tmp_path, {FILES[0].name: text})[FILES[0].name]
    (tmp_path / f"a.{format}").write_text(render(written, format), encoding="utf-8")
    (found,) = aligner.align(FILES[0], tmp_path / f"a.{format}")
    assert isinstance(found, Transcript) and found.speakers == ("Anna", "Berta") and found.words == written.words
    for other in ("srt", "vtt", "txt", "md"):
        assert render(found, other) == render(written, other), other


@pytest.mark.parametrize("names", [("", ""), ("Anna: ", "Berta: ")])
def test_paragraphs_of_a_text_stay(aligner: Aligner, tmp_path: Path, names: tuple[str, str]) -> None:
    """A sound before the first name is of none of the speakers."""
    words = TEXTS[FILES[0].name].split()
    text = f"(Jingle)\n\n{names[0]}{' '.join(words[:4])}\n\n{names[1]}{' '.join(words[4:])}\n"
    given = text if names[0] else text.replace(f" {words[1]}", f"\n{words[1]}")
    found = aligned(aligner, tmp_path, {FILES[0].name: given})[FILES[0].name]
    stored = to_result(to_object(found))
    assert isinstance(stored, Transcript) and render(stored, "txt") == render(found, "txt") == text
    assert "\n(Jingle)\n" in render(found, "srt") and "[00:00] (Jingle)\n\n[00:0" in render(found, "md")
    assert found.speakers == (("Anna", "Berta") if names[0] else ()) and not any(word.missing for word in found.words)


def test_a_sound_between_paragraphs_is_nobodys(aligner: Aligner, tmp_path: Path) -> None:
    """Subtitles have it alone, and one inside what a speaker says does not cut that in two."""
    words = TEXTS[FILES[0].name].split()
    first, last = f"ANNA: {' '.join(words[:4])} [wind]", f"BERTA: {' '.join(words[4:])}"
    text = f"{first}\n\n(laughs)\n\n{last}\n"
    found = aligned(aligner, tmp_path, {FILES[0].name: text})[FILES[0].name]
    assert render(found, "txt") == text and found.speakers == ("ANNA", "BERTA")
    cues = (f"ANNA: {words[0]}", "[wind]", " ".join(words[1:4]), "(laughs)", last)
    subtitles = "".join(f"\n0:0{at} --> 0:0{at}.5\n{cue}\n" for at, cue in enumerate(cues))
    (tmp_path / "a.srt").write_text(subtitles, encoding="utf-8")
    (found,) = aligner.align(FILES[0], tmp_path / "a.srt")
    assert render(found, "txt") == text.replace(" [wind]", "").replace("(laughs)\n\n", "")
    assert "\n<v ANNA>At" in render(found, "vtt") and "\n(laughs)\n" in render(found, "vtt")


def test_what_is_no_name_is_a_word(aligner: Aligner, tmp_path: Path) -> None:
    """The only name of a text, which comes once and behind other words, may be a heading. Times are no words all the same."""
    words = TEXTS[FILES[0].name].split()
    text = f"{' '.join(words[:4])}\n[00:02] CROWD: {' '.join(words[4:])}"
    found = aligned(aligner, tmp_path, {FILES[0].name: text})[FILES[0].name]
    assert found.speakers == () and [word.text for word in found.words] == [*words[:4], "CROWD:", *words[4:]]


def test_a_word_that_is_not_written_follows_those_around_it(aligner: Aligner, tmp_path: Path) -> None:
    """An unspoken title has no subtitle, with a figure, too."""
    text = f"ox an β ox β\n{TEXTS[FILES[0].name]} β"
    found = aligned(aligner, tmp_path, {FILES[0].name: text})[FILES[0].name]
    assert [word.missing for word in found.words] == [True] * 5 + [False] * (len(found.words) - 5)
    assert "ox" not in render(found, "srt") and "β" in render(found, "srt")


def test_words_that_were_not_spoken_are_missing(aligner: Aligner, tmp_path: Path) -> None:
    file = FILES[5].name
    words = TEXTS[file].split()
    right = aligned(aligner, tmp_path, {file: TEXTS[file]})[file]
    wrong = aligned(aligner, tmp_path, {file: " ".join([*words[:4], "my", *words[4:]])})[file]
    assert [word.text for word in wrong.words if word.missing] == ["my"]
    kept = [(word.text, word.start_s, word.end_s) for word in wrong.words if not word.missing]
    assert kept == [(word.text, word.start_s, word.end_s) for word in right.words]
    assert all(left.end_s <= after.start_s + 1e-9 for left, after in zip(wrong.words, wrong.words[1:], strict=False))


def test_speech_that_is_not_in_the_text_is_a_gap(aligner: Aligner, tmp_path: Path) -> None:
    file = FILES[0].name
    words = TEXTS[file].split()
    right = aligned(aligner, tmp_path, {file: TEXTS[file]})[file]
    (gap,) = aligned(aligner, tmp_path, {file: " ".join([*words[:6], *words[8:]])})[file].gaps
    assert gap.start_s < right.words[6].end_s and gap.end_s > right.words[7].start_s
    assert gap.start_s >= right.words[5].start_s and gap.end_s <= right.words[8].end_s


@pytest.mark.parametrize(("first", "is_outside"), [(3, True), (25, False)])
def test_a_word_found_by_chance_is_none_of_the_recording(aligner: Aligner, first: int, is_outside: bool) -> None:
    """Of thirty words the last ten were heard, and one before them, for which there is no time, or some."""
    script = aligner.text_aligner._speller.script("so " * 30)
    heard = [token for own in (script.word_tokens[5], *script.word_tokens[20:]) for token in own]
    job: Any = SimpleNamespace(
        script=script,
        token_spans={token: (at + (first if at else 0), 90) for at, token in enumerate(heard)},
        frames=SimpleNamespace(span_s=lambda first, end: (first / 10, end / 10)),
        audio=SimpleNamespace(last_s=9.0),
    )
    outside = list(aligner.text_aligner._outside_tokens(job))
    assert outside == (list(range(script.word_tokens[20].start)) if is_outside else [])


@pytest.mark.parametrize("format", ["txt", "md", "srt", "ass"])
def test_a_text_may_begin_before_the_recording_and_end_after_it(
    aligner: Aligner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """A text of one line, of a paragraph, and subtitles, with a sound between. It has more tokens than there are frames."""
    said, *others = (TEXTS[file.name] for file in FILES[:8])
    lines = [*others[:3], "[bell]", said, *others[3:]]
    cues = {"srt": "\n0:0{0} --> 0:0{0}.5\n{1}\n", "ass": "Dialogue: 0,0:00:0{0}.00,0:00:0{0}.50,Default,,0,0,0,,{1}\n"}
    text, is_cues = tmp_path / f"a.{format}", format in cues
    given = "".join(cues.get(format, "{1} ").format(at, line) for at, line in enumerate(lines))
    text.write_text(("[Events]\n" if format == "ass" else "") + given, encoding="utf-8")
    monkeypatch.setattr(aligner.text_aligner, "counts", Counts())
    (found,) = aligner.align(FILES[0], text)
    assert isinstance(found, Transcript)
    line = aligner.text_aligner.counts.lines[0]
    assert "the recording begins later" in line
    assert f'from "{" ".join(others[3].split()[:4])}" on: the recording ends at 00:0' in line
    shown = " ".join(" ".join(cue.split("\n")[2:]) for cue in render(found, "srt").strip().split("\n\n"))
    assert shown == f"[bell] {said}" and render(found, "ass").count("Dialogue:") == (2 if is_cues else 1)
    assert " ".join(render(found, "txt").split()) == " ".join(lines[:3] + lines[3 + is_cues :])


def joined(folder: Path, pause_s: float = 1.0) -> tuple[Path, Path, list[float]]:
    """Join the recordings into one, with a line of text for each. Return it, its text and where each begins in seconds."""
    parts, starts_s = [], []
    for file in FILES:
        starts_s.append(sum(map(len, parts)) / 16000)
        parts += [soundfile.read(file, dtype="int16")[0], np.zeros(round(16000 * pause_s), np.int16)]
    audio, text = folder / "joined.flac", folder / "joined.txt"
    soundfile.write(audio, np.concatenate(parts), 16000)
    text.write_text("\n".join(TEXTS[file.name] for file in FILES), encoding="utf-8")
    return audio, text, starts_s


def test_long_recording_is_aligned_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Utterances of 8 s and windows of 2 s give the words' times within two frames of those in each clip."""
    monkeypatch.setattr(alignment, "_MIN_WHOLE_S", 10.0)
    monkeypatch.setattr(alignment, "_MIN_WINDOW_S", 2.0)
    aligner = Aligner.load(MODELS / "hybrid" / "model.nemo", "cpu", "fp32", Options(max_utterance_s=8.0))
    audio, text, starts_s = joined(tmp_path)
    jobs = []
    monkeypatch.setattr(aligner.text_aligner, "_find_paths", _recording(aligner.text_aligner._find_paths, jobs))
    (whole,) = aligner.align(audio, text)
    assert isinstance(whole, Transcript) and len(jobs[0].windows) > 4
    alone = aligned(aligner, tmp_path, {file.name: TEXTS[file.name] for file in FILES})
    assert [segment.line for segment in whole.segments] == list(range(1, len(FILES) + 1))
    for file, segment, start_s in zip(FILES, whole.segments, starts_s, strict=True):
        for word, reference in zip(segment.words, alone[file.name].words, strict=True):
            assert not word.missing
            assert word.start_s - start_s == pytest.approx(reference.start_s, abs=0.17)


def _recording(function, found: list):
    def call(jobs) -> None:
        found.extend(jobs)
        function(jobs)

    return call


def test_rows_of_lines_are_read_back(aligner: Aligner, tmp_path: Path) -> None:
    """Subtitles follow the lines, also those that are made of a stored row."""
    text = tmp_path / "lines.txt"
    words = TEXTS[FILES[0].name].split()
    text.write_text("\n".join([" ".join(words[:2]), " ".join(words[2:5]), " ".join(words[5:])]), encoding="utf-8")
    (found,) = aligner.align(FILES[0], text)
    assert isinstance(found, Transcript)
    again = to_result(json.loads(render(found, "jsonl")), found.audio.id)
    assert isinstance(again, Transcript) and to_object(again) == to_object(found)
    for format in ("srt", "vtt", "tsv", "ctm"):
        assert render(again, format) == render(found, format)
    cues = render(found, "srt").strip().split("\n\n")
    shown = [" ".join(cue.split("\n")[2:]) for cue in cues]
    assert shown[:2] == [" ".join(words[:2]), " ".join(words[2:5])] and " ".join(shown[2:]) == " ".join(words[5:])


def test_unusable_texts_fail_alone(aligner: Aligner, tmp_path: Path) -> None:
    names = [file.name for file in FILES[:6]]
    texts: dict[str, Any] = {
        names[0]: TEXTS[names[0]],
        names[1]: "",
        names[2]: "word " * 2000,
        names[3]: "— ¤ —",
        names[4]: TEXTS[names[4]],
        names[5]: None,
    }
    found = list(aligner.align(manifest(tmp_path, texts), ordered=True))
    messages = [one.message if isinstance(one, Failure) else "" for one in found]
    assert [bool(message) for message in messages] == [False, True, True, True, False, True]
    assert "empty" in messages[1] and "too short" in messages[2] and "no letters" in messages[3]
    assert "it has no text: --text names its file" in messages[5]
    assert [one.stage for one in found if isinstance(one, Failure)] == [*["align"] * 3, "input"]
    assert to_object(found[0])["speaker"] == "a"


def test_recordings_without_sound_fail() -> None:
    """No batch may follow that completes them: the packaged model gets no silence."""
    aligner = Aligner.load("default", "cpu", "fp32", say=lambda line: None).with_texts(_SameText())
    silence = np.zeros(80000, np.int16), 16000
    for inputs in ([silence], [silence, silence], [soundfile.read(FILES[0], dtype="int16"), silence]):
        *others, silent = aligner.transcribe(inputs, ordered=True)
        assert len(others) == len(inputs) - 1
        assert isinstance(silent, Failure) and silent.stage == "align" and "no sound" in silent.message


class _SameText:
    """Texts of one text for all recordings."""

    def attach(self, source):
        return source if isinstance(source, Failure) else replace(source, row={"text": TEXTS[FILES[0].name]})


def test_lines_have_the_numbers_of_the_file(aligner: Aligner, tmp_path: Path) -> None:
    words = TEXTS[FILES[0].name].split()
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(["", " ".join(words[:4]), "", " ", " ".join(words[4:])]), encoding="utf-8")
    (found,) = aligner.align(FILES[0], text)
    assert isinstance(found, Transcript) and [segment.line for segment in found.segments] == [2, 5]


def test_a_stretch_that_is_too_long_to_search_is_counted(
    aligner: Aligner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every word gets frames there, also one that was not spoken, so the command says it."""
    monkeypatch.setattr(alignment, "MAX_CELLS", 100)
    file = FILES[5].name
    words = TEXTS[file].split()
    for text, is_common in (([*words[:4], "my", *words[4:]], True), (["my", *words[::-1]], False)):
        counts = Counts()
        monkeypatch.setattr(aligner.text_aligner, "counts", counts)
        found = aligned(aligner, tmp_path, {file: " ".join(text)})[file]
        assert not any(word.missing for word in found.words)
        length_s = pytest.approx(found.audio.duration_s, abs=0.2)
        assert counts.unsearched_s == {is_common: length_s, not is_common: 0.0}
    other, repeated = Counts(unsearched_s={False: 310.0, True: 310.0}).lines
    assert "5 minutes of recordings have no three words in a row in common" in other
    assert "another text" not in repeated and "in common" not in repeated


def test_one_model_aligns() -> None:
    with pytest.raises(UsageError, match="here `model` is the model that aligns"):
        Aligner.load(MODELS / "hybrid" / "model.nemo", "cpu", options=Options(align_with="default"))


@pytest.mark.parametrize("option", ["speakers", "rttm"])
def test_a_known_text_does_not_say_who_speaks(option: str) -> None:
    options = Options(**{option: "channels"})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^Options.speakers is for Transcriber: a text to align does not say who"):
        Aligner.load(MODELS / "hybrid" / "model.nemo", "cpu", options=options)


def test_models_without_a_ctc_head_are_refused() -> None:
    with pytest.raises(CheckpointError, match="no CTC head"):
        Aligner.load(MODELS / "tdt_demo" / "model.nemo", "cpu")


def test_one_text_is_of_one_recording(aligner: Aligner, tmp_path: Path) -> None:
    """The progress does not wait for the others of a folder."""
    text = tmp_path / f"{FILES[0].stem}.txt"
    text.write_text(TEXTS[FILES[0].name], encoding="utf-8")
    assert len(list(aligner.align(FILES[:3], tmp_path))) == 1 and aligner.progress.textless == 2
    with pytest.raises(UsageError, match="several recordings"):
        list(aligner.align(FILES[:2], text))
    with pytest.raises(UsageError, match="no such file"):
        list(aligner.align(FILES[:1], tmp_path / "b.txt"))
