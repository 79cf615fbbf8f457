"""The callable class for Ray Data, called as an actor calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fastscribe
import fastscribe.ray
from fastscribe import Options
from fastscribe.errors import UsageError
from tests.conftest import AUDIO, MODELS
from tests.helpers import indic_folder

pa = pytest.importorskip("pyarrow", reason="needs the extra ray")
pytest.importorskip("ray", reason="needs the extra ray")
FIRST, SILENCE = next(AUDIO.glob("01_*")), next(AUDIO.glob("e05_*"))


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fastscribe.ray.Transcriber]:
    import fastscribe.ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("node")))
        model = str(MODELS / "ctc" / "model.nemo")
        yield fastscribe.ray.Transcriber(model, device="cpu", dtype="fp32", root=str(AUDIO), options=Options(threads=1))


def test_rows_stay_in_order_with_all_their_columns(transcriber, tmp_path: Path) -> None:
    (tmp_path / "corrupt.flac").write_bytes(b"fLaC" + bytes(100))
    paths = [FIRST.name, str(tmp_path / "corrupt.flac"), None, SILENCE.name, str(FIRST), "", FIRST.name]
    offsets = [None, None, None, None, 1.0, None, None]
    table = pa.table({"key": range(7), "path": paths, "offset": offsets, "duration": [None] * 4 + [1.5, -1.0, None]})
    found = transcriber(table)
    assert found.column_names[:4] == table.column_names and found.select(table.column_names).equals(table)
    rows = found.to_pylist()
    assert [row["error"] is None for row in rows] == [True, False, False, True, True, False, True]
    assert rows[0]["text"] == rows[6]["text"] and rows[0]["text"].startswith(
        " ".join(w["word"] for w in rows[0]["words"])[:5]
    )
    assert rows[3]["text"] == "" and rows[3]["words"] == []
    assert 1.0 < rows[4]["words"][-1]["end"] + 1.0 <= 2.6 and len(rows[4]["words"]) < len(rows[0]["words"])
    assert rows[2]["error"]["message"] == "no path or URL in column path" and rows[2]["text"] is None


def test_the_schema_is_the_same_for_empty_and_failed_batches(transcriber) -> None:
    good, silent, bad = (transcriber({"path": np.array([str(path)])}) for path in (FIRST, SILENCE, "gone.wav"))
    assert good.schema.equals(silent.schema) and good.schema.equals(bad.schema)
    assert good["text"][0].as_py() and bad["error"][0].as_py()["type"]
    assert transcriber(pa.table({"path": pa.array([], pa.string())})).schema.equals(good.schema)


def test_columns_that_a_room_adds() -> None:
    from fastscribe.ray.map_batches import _columns

    plain, found = _columns(Options()), _columns(Options(rttm="a", voices="b"))
    assert list(found) == [*plain, "speakers", "turns", "voices"]
    span = "start: double, end: double"
    assert str(plain["gaps"]) == f"list<item: struct<{span}>>"
    assert str(found["gaps"]) == f"list<item: struct<{span}, speaker: string>>"
    voice = f"speaker: string, speech: double, {span}, embedding: list<item: float>"
    assert str(found["voices"]) == f"list<item: struct<{voice}>>"
    assert "voices" not in _columns(Options(speakers="channels"))


def test_a_manifests_columns(transcriber) -> None:
    """`audio_filepath` comes before `path`, and the reference stays in `text`, as in the rows of transcripts.jsonl."""
    rows = transcriber(
        pa.table({"path": ["gone.wav"], "audio_filepath": [FIRST.name], "text": ["reference"]})
    ).to_pylist()
    assert rows[0]["text"] == "reference" and rows[0]["pred_text"] and rows[0]["error"] is None


def test_the_language_is_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the rows of a run, whatever spelling was given."""
    import fastscribe.ray

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = str(indic_folder.write(tmp_path / "indic", indic_folder.shapes()))
    options = Options(threads=1, language="hi-IN")
    found = fastscribe.ray.Transcriber(model, device="cpu", dtype="fp32", options=options)
    assert found(pa.table({"path": [str(SILENCE), "gone.wav"]}))["language"].to_pylist() == ["hi", None]


def test_a_pandas_frame_and_no_column_with_paths(transcriber) -> None:
    pandas = pytest.importorskip("pandas")
    assert transcriber(pandas.DataFrame({"path": [FIRST.name]}))["text"][0].as_py()
    with pytest.raises(UsageError, match="no column audio_filepath or path among file: path_column names"):
        transcriber(pa.table({"file": [FIRST.name]}))
