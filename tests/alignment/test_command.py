"""`fastscribe align` as a process: texts, formats, resuming, and what is wrong with inputs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.conftest import AUDIO, DATA, MODELS
from tests.helpers.processes import fastscribe, refused
from tests.helpers.schemas import check_schema

MODEL = str(MODELS / "hybrid" / "model.nemo")
FILES = sorted(AUDIO.glob("0*.flac"))[:3]
ROWS = [json.loads(line) for line in (DATA / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
TEXTS = {Path(row["audio_filepath"]).name: row["text"] for row in ROWS}
SENTENCE = TEXTS[FILES[0].name]
OUT = "out"
MUSIC = "[Script Info]\nScriptType: v4.00+\n\n[Events]\nFormat: Layer, Start, End, Style, Name, Effect, Text\n"


def align(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    return fastscribe("align", *arguments, "--model", MODEL, **options)


def rows(text: str) -> list[dict]:
    """Return the results, which must be as the published schema says."""
    found = [json.loads(line) for line in text.splitlines()]
    check_schema("result", found)
    return found


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    words = SENTENCE.split()
    file.write_text(f"{' '.join(words[:3])}\n{' '.join(words[3:])}\n", encoding="utf-8")
    return file


def test_a_recording_and_its_text(text: Path) -> None:
    result = align(FILES[0], "--text", text)
    (row,) = rows(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert row["pred_text"] == SENTENCE and row["text"] == text.read_text(encoding="utf-8")
    assert [segment["line"] for segment in row["segments"]] == [1, 2]
    assert [word["word"] for word in row["words"]] == SENTENCE.split() and row["gaps"] == []
    times = [time for word in row["words"] for time in (word["start"], word["end"])]
    assert times == sorted(times) and times[-1] <= row["duration"]


@pytest.mark.posix
def test_a_text_in_a_pipe(text: Path, tmp_path: Path) -> None:
    """`<(command)` gives such a pipe."""
    os.mkfifo(tmp_path / "pipe")
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(text.read_bytes(),), daemon=True).start()
    result = align(FILES[0], "--text", tmp_path / "pipe")
    assert rows(result.stdout)[0]["pred_text"] == SENTENCE, result.stderr


def test_folder_of_texts_resumes(tmp_path: Path) -> None:
    """A changed text is aligned again, the others are not; a recording without a text is left out until it has one."""
    texts, audio, out = tmp_path / "texts", tmp_path / "audio", tmp_path / "out"
    texts.mkdir()
    audio.mkdir()
    for file in FILES:
        shutil.copy(file, audio)
        (texts / f"{file.stem}.txt").write_text(TEXTS[file.name], encoding="utf-8")
    (texts / f"{FILES[2].stem}.txt").unlink()
    (texts / f"{FILES[1].stem}.txt").unlink()
    (texts / f"{FILES[1].stem}.md").write_text(f"# talk (00:07)\n\n[00:00] {TEXTS[FILES[1].name]}\n", encoding="utf-8")
    command = (audio, "--text", texts, "-o", out, "-f", "srt,json")
    first = align(*command)
    assert first.returncode == 0
    assert f"in {texts}, or an empty one: {audio / FILES[2].name}\n" in first.stderr
    assert len(rows((out / "transcripts.jsonl").read_text("utf-8"))) == 2
    assert {path.name for path in out.glob("*.srt")} == {f"{file.stem}.srt" for file in FILES[:2]}
    (texts / f"{FILES[2].stem}.txt").write_text(TEXTS[FILES[2].name], encoding="utf-8")
    (texts / f"{FILES[1].stem}.txt").write_text(TEXTS[FILES[1].name].split()[0], encoding="utf-8")
    second = align(*command)
    assert second.returncode == 0, second.stderr
    found = {Path(row["audio_filepath"]).name: row for row in rows((out / "transcripts.jsonl").read_text("utf-8"))}
    assert len(found) == 3 and found[FILES[1].name]["pred_text"] == TEXTS[FILES[1].name].split()[0]
    assert found[FILES[1].name]["gaps"] and not found[FILES[2].name]["gaps"]
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert (report["files"], report["skipped"]) == (2, 1)
    other = refused("transcribe", audio, "-o", out, "--model", MODEL, "--quiet")
    assert f"{out}: holds results of align: use another folder, or --overwrite" in other


def test_a_folder_without_a_text_is_an_error(tmp_path: Path) -> None:
    """An empty text, such as the program's own of music, is none."""
    for name, content in (
        ("a.txt", "\n"),
        ("b.md", "# b (00:07)\n"),
        ("c.srt", ""),
        ("d.vtt", "WEBVTT\n\n"),
        ("e.ass", MUSIC),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
    for name in "abcdef":
        shutil.copy(FILES[0], tmp_path / f"{name}.flac")
    error = refused("align", tmp_path, "--text", tmp_path, "--quiet", "--model", MODEL)
    assert "6 recordings left out that have no text (.txt, .md, .srt, .vtt, .ass, .ssa) in" in error


def test_the_edited_one_of_a_runs_texts_counts(tmp_path: Path) -> None:
    """Without one, and without a run, .txt comes first. It counts also where --overwrite left it."""
    out = tmp_path / "out"
    assert fastscribe("transcribe", *FILES[:2], "-o", out, "-f", "txt,md,srt", "--model", MODEL).returncode == 0
    markdown = out / f"{FILES[1].stem}.md"
    markdown.write_text("[00:00] " + TEXTS[FILES[1].name] + " **Really**!\n", encoding="utf-8")
    done = align(*FILES[:2], "--text", out, "--ordered")
    assert rows(done.stdout)[1]["text"].endswith(" Really!")
    assert f"{markdown}: edited since the run, so it counts before other texts" in done.stderr
    assert f"not read: {out / FILES[0].stem}.md and 1 other file, because of several texts" in done.stderr
    (out / f"{FILES[1].stem}.srt").write_text("1\n0:0 --> 0:1\nother\n", encoding="utf-8")
    both = align(FILES[1], "--text", out)
    assert rows(both.stdout)[0]["text"].endswith(" Really!")
    assert f"{out / FILES[1].stem}.srt was edited too, and is not read: {markdown} counts\n" in both.stderr
    assert "not read: " not in both.stderr.replace("is not read: ", "")
    quiet = align(*FILES[:2], "--text", out, "--quiet").stderr
    assert "was edited too" in quiet and ": not read: " not in quiet and "counts before" not in quiet
    again = ("-o", out, "-f", "txt", "--model", MODEL, "--overwrite")
    for name in ("srt", "md"):
        (out / f"{FILES[1].stem}.{name}").rename(out / f"{FILES[1].stem}.txt")
    assert fastscribe("transcribe", *FILES[:2], *again).returncode == 0
    found = rows(align(FILES[1], "--text", out).stdout)[0]["text"]
    assert len([*out.glob("*.txt")]) == 3 and "Really" in found
    (out / "journal.jsonl").unlink()
    (out / f"{FILES[1].stem}.txt").unlink()
    assert not rows(align(FILES[1], "--text", next(out.glob("*-*.txt"))).stdout)[0]["text"].endswith(" Really!")


def test_texts_of_a_run_are_found_after_a_folder_was_renamed(tmp_path: Path) -> None:
    """Twice; the files of the results keep the names of the first folder."""
    (tmp_path / "S1").mkdir()
    shutil.copy(FILES[0], tmp_path / "S1" / "a.flac")
    given = ("-o", "out", "-f", "txt", "-q", "--model", MODEL)
    assert fastscribe("transcribe", ".", *given, cwd=tmp_path).returncode == 0
    for old, new in (("S1", "S2"), ("S2", "S3")):
        (tmp_path / old).rename(tmp_path / new)
        assert fastscribe("transcribe", ".", *given, "--moved", f"{old}={new}", cwd=tmp_path).returncode == 0
    (tmp_path / "out" / "S1" / "a.txt").write_text(SENTENCE, encoding="utf-8")
    (row,) = rows(align(".", "--text", "out", "-q", cwd=tmp_path).stdout)
    assert row["pred_text"] == SENTENCE and row["audio_filepath"].endswith("S3/a.flac")


def test_names_count_from_the_first_one_on(tmp_path: Path) -> None:
    """A title has no speaker. The only name behind other words may be no name, and a line says that it is not used."""
    words, text = SENTENCE.split(), tmp_path / "text.txt"
    parts = " ".join(words[:3]), " ".join(words[3:6]), " ".join(words[6:])
    for names, speakers in ((("ANNA", "BEN"), [None, "ANNA", "BEN"]), (("ANNA", "ANNA"), [None] * 3)):
        text.write_text(f"{parts[0]}\n\n{names[0]}: {parts[1]}\n\n{names[1]}: {parts[2]}\n", encoding="utf-8")
        done = align(FILES[0], "--text", text)
        (row,) = rows(done.stdout)
        assert row["pred_text"] == SENTENCE and [one.get("speaker") for one in row["segments"]] == speakers
        assert (f"{FILES[0]}: names of speakers are not used: " in done.stderr) == (speakers[1] is None)
        subtitles = text.with_suffix(".srt")
        cues = zip(("", f"{names[0]}: ", f"{names[1]}: "), parts, strict=True)
        subtitles.write_text("".join(f"{n}\n0:0{n} --> 0:0{n + 1}\n{a}{b}\n\n" for n, (a, b) in enumerate(cues, 1)))
        done = align(FILES[0], "--text", subtitles)
        assert [one.get("speaker") for one in rows(done.stdout)[0]["segments"]] == speakers
        assert (f"{subtitles}: names of speakers are not used: " in done.stderr) == (speakers[1] is None)


def test_speech_that_is_not_in_the_text_is_told(tmp_path: Path) -> None:
    [recording] = AUDIO.glob("e10_*")
    words, text = TEXTS[recording.name].split(), tmp_path / "text.txt"
    text.write_text(" ".join([*words[:20], *words[60:]]), encoding="utf-8")
    done = align(recording, "--text", text)
    (row,) = rows(done.stdout)
    seconds = sum(gap["end"] - gap["start"] for gap in row["gaps"])
    line = f"{seconds:.0f} s of speech in 1 recording are not in the text: gaps in JSON says where\n"
    assert seconds > 5 and line in done.stderr
    assert line not in align(recording, "--text", text, "-q").stderr


def test_texts_in_the_output_folder_are_not_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert fastscribe("transcribe", FILES[0], "-o", out, "-f", "txt", "--model", MODEL).returncode == 0
    before = sorted(path.name for path in out.iterdir())
    for command in (["--text", out], ["--text", out / f"{FILES[0].stem}.txt", "--overwrite"]):
        error = refused("align", FILES[0], *command, "-o", out, "-f", "srt", "--model", MODEL)
        assert "the texts lie in the output folder, among results of transcribe: give another -o" in error
        assert sorted(path.name for path in out.iterdir()) == before
    (text := tmp_path / "a.txt").write_text(SENTENCE, encoding="utf-8")
    (own := tmp_path / "own").mkdir()
    shutil.copy(text, own / f"{FILES[0].stem}.txt")
    assert align(FILES[0], "--text", own, "-o", own, "-f", "txt").returncode == 0
    error = refused("align", FILES[0], "--text", own, "-o", own, "-f", "txt", "--overwrite", "--model", MODEL)
    assert f"{own}: the texts lie in the output folder, where --overwrite removes them: give another -o" in error
    assert (own / f"{FILES[0].stem}.txt").is_file()
    other = refused("align", FILES[0], "--text", text, "-o", out, "-f", "srt", "--model", MODEL)
    assert f"{out}: holds results of transcribe: use another folder" in other


def test_errors_of_the_text_are_said(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    words = TEXTS[FILES[1].name].split()
    text.write_text(" ".join([words[0], "ox", *words[1:], "β"]), encoding="utf-8")
    result = align(FILES[1], "--text", text)
    (row,) = rows(result.stdout)
    assert [word["word"] for word in row["words"] if word.get("missing")] == ["ox"]
    lines = result.stderr.splitlines()
    assert result.returncode == 0 and len(lines) == 2
    assert "does not write β, which the texts have once" in lines[0] and "1 word of the texts was not heard" in lines[1]
    assert f": {FILES[1]}: ox (near 00:00); it is marked" in lines[1]


def test_a_line_that_nobody_speaks_has_no_cue(tmp_path: Path) -> None:
    """It is named and marked. One that is heard but for a word or two is shown whole, and a short one unless all is missing."""
    [recording] = AUDIO.glob("e10_*")
    words, unspoken = TEXTS[recording.name].split(), ["ox", "an", "ox", "is", "an", "ox"]
    lines = [
        *map(" ".join, (words[:6], unspoken, ["ox", *words[6:8]], [*words[8:18], "ox"])),
        "ox",
        " ".join(words[18:]),
    ]
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("\n".join(lines), encoding="utf-8")
    done = align(recording, "--text", text, "-o", out, "-f", "vtt")
    assert done.returncode == 0
    assert (
        f"2 lines of the texts were not heard, and subtitles leave them out: {recording}: 2, {recording}: 5"
        in done.stderr
    )
    (row,) = rows((out / "transcripts.jsonl").read_text("utf-8"))
    assert [one.get("missing", False) for one in row["segments"]] == [False, True, False, False, True, False]
    written = (out / f"{recording.stem}.vtt").read_text("utf-8").split("\n\n")[1:]
    shown = " ".join(" ".join(block.split("\n")[1:]) for block in written).split()
    assert shown == " ".join(lines[number] for number in (0, 2, 3, 5)).split()


def test_a_text_of_another_recording_fails(tmp_path: Path) -> None:
    """Here its own, backwards. A text of which the first half is spoken is aligned."""
    [recording] = AUDIO.glob("e10_*")
    words, text = TEXTS[recording.name].split(), tmp_path / "text.txt"
    for content, code in ((words[::-1], 1), ([*words[:55], *words[:55][::-1]], 0), (words, 0)):
        text.write_text(" ".join(content), encoding="utf-8")
        done = align(recording, "--text", text)
        assert done.returncode == code
        assert ("its text is not what is spoken" in done.stderr) == bool(code)


def test_subtitles_get_the_times_of_their_words(tmp_path: Path) -> None:
    """One cue for each, in every format and from stored rows; without words or unheard, it stays between the others."""
    words = SENTENCE.split()
    cues = ["[wind]", f"- <i>{' '.join(words[:3])}</i>", "ox ox ox ox", f"{words[3]}\r\n{' '.join(words[4:])}"]
    text = tmp_path / "a.srt"
    times = [f"00:00:{40 + n},000 --> 00:00:{41 + n},000" for n in range(4)]
    content = "".join(
        f"{n}\r\n{time}\r\n{cue}\r\n\r\n" for n, (time, cue) in enumerate(zip(times, cues, strict=True), 1)
    )
    text.write_bytes(content.encode("utf-8-sig"))
    result = align(FILES[0], "--text", text, "-o", tmp_path / "out", "-f", "srt,vtt")
    assert result.returncode == 0 and "4 words of the texts were not heard" in result.stderr
    (row,) = rows((tmp_path / "out" / "transcripts.jsonl").read_text("utf-8"))
    assert row["text"].split("\n") == [one["text"] for one in row["segments"]]
    assert row["text"].split("\n") == ["", " ".join(words[:3]), "ox ox ox ox", " ".join(words[3:])]
    assert [one.get("missing", False) for one in row["segments"]] == [False, False, True, False]
    spoken = [row["words"][number] for number in (0, 2, 7, -1)]
    assert [(one["start"], one["end"]) for one in row["segments"][1::2]] == [
        (spoken[0]["start"], spoken[1]["end"]),
        (spoken[2]["start"], spoken[3]["end"]),
    ]
    assert row["segments"][1]["end"] <= row["segments"][2]["start"] <= row["segments"][2]["end"] <= spoken[2]["start"]
    written = (tmp_path / "out" / f"{FILES[0].stem}.srt").read_text("utf-8")
    shown = [block.split("\n", 2)[2] for block in written.strip().split("\n\n")]
    assert shown == [cue.replace("\r\n", "\n") for cue in cues]
    assert "<i>" in (tmp_path / "out" / f"{FILES[0].stem}.vtt").read_text("utf-8")
    assert fastscribe("export", tmp_path / "out", "-f", "srt", "-o", tmp_path / "again").returncode == 0
    assert next((tmp_path / "again").rglob("*.srt")).read_text("utf-8") == written


def test_files_of_texts(tmp_path: Path) -> None:
    """In a folder .txt comes before subtitles. A line names guesses and files passed over; other kinds fail."""
    texts, audio = tmp_path / "texts", tmp_path / "audio"
    texts.mkdir()
    audio.mkdir()
    for file in FILES:
        shutil.copy(file, audio)
    (texts / f"{FILES[0].stem}.txt").write_text(SENTENCE, encoding="utf-8")
    dialogue = SENTENCE.replace(", ", ",\n\n[00:03] **Berta**: ")
    (tmp_path / "talk.md").write_text(f"# a\\_b (00:24)\n\n[00:00] **Anna**: {dialogue}\n", encoding="utf-8")
    [of_markdown] = rows(align(FILES[0], "--text", tmp_path / "talk.md").stdout)
    assert of_markdown["pred_text"] == SENTENCE and of_markdown["pred_speakers"] == ["Anna", "Berta"]
    assert [one["line"] for one in of_markdown["segments"]] == [3, 5]
    (texts / f"{FILES[0].stem}.srt").write_text("1\n0:0 --> 0:1\nother words\n", encoding="utf-8")
    (texts / f"{FILES[1].stem}.vtt").write_bytes(f"WEBVTT\n\n0:0 --> 0:1\n{TEXTS[FILES[1].name]} é\n".encode("latin-1"))
    (texts / f"{FILES[2].stem}.ass").write_text("[Script Info]\n", encoding="utf-8")
    result = align(audio, "--text", texts, "--ordered")
    first, second, third = rows(result.stdout)
    assert first["pred_text"] == SENTENCE and "subtitles" not in first
    assert second["subtitles"]["encoding"] == "windows-1252" and second["text"].endswith(" é")
    assert third["error"]["message"].endswith(f"{FILES[2].stem}.ass: it has no cue with a time: no subtitles to align")
    assert f"{FILES[1].stem}.vtt: not UTF-8: read as windows-1252; save it as UTF-8" in result.stderr
    assert f"not read: {texts / FILES[0].stem}.srt, because of several texts .txt, .md, .srt, .vtt" in result.stderr
    (tmp_path / "a.txt").write_bytes(f"{SENTENCE} José".encode("windows-1252"))
    guessed = align(FILES[0], "--text", tmp_path / "a.txt")
    assert rows(guessed.stdout)[0]["text"] == f"{SENTENCE} José"
    assert f"{tmp_path / 'a.txt'}: not UTF-8: read as windows-1252; save it as UTF-8" in guessed.stderr
    (tmp_path / "a.ttml").write_text("<tt/>", encoding="utf-8")
    documents = {"a.docx": b"PK\3\4 and more", "a.json": b'{\n  "text": "a"}', "a.jsonl": b'{"text": "a"}'}
    for name, content in documents.items():
        (tmp_path / name).write_bytes(content)
        document = align(FILES[0], "--text", tmp_path / name)
        assert document.returncode == 1 and f"{name}: a document, not text: save it as text" in document.stderr
    refused = align(FILES[0], "--text", tmp_path / "a.ttml")
    assert refused.returncode == 1 and "a.ttml: subtitles of this kind are not read: make SubRip" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([FILES[0]], "no texts"),
        ([FILES[0], "--text", "nowhere.txt"], "--text nowhere.txt: no such file or folder"),
        ([FILES[0], "--text", f"{SENTENCE}\n" * 100], "no such file or folder"),
        ([*FILES, "--text", DATA / "README.md"], "several recordings"),
        ([*FILES, "--text", DATA / "README.md", "-o", OUT], "several recordings"),
        ([FILES[0], "--text", DATA / "README.md", "-f", "srt,vtt"], "--output-dir"),
    ],
    ids=["none", "missing", "the text itself", "one for several", "with a folder", "formats"],
)
def test_wrong_usage(arguments: list, named: str, tmp_path: Path) -> None:
    result = align(*(tmp_path / OUT if one == OUT else one for one in arguments))
    assert result.returncode == 2 and named in result.stderr and len(result.stderr.splitlines()) == 1
    assert not result.stdout and not (tmp_path / OUT).exists()


def test_a_text_that_is_no_text(tmp_path: Path) -> None:
    result = align(FILES[0], "--text", FILES[0], "--quiet")
    assert result.returncode == 1 and "not text at character" in result.stderr and "save it as" in result.stderr
