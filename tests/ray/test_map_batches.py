"""The callable class for Ray Data, called as an actor calls it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fastscribe
import fastscribe.ray
from fastscribe import Options
from fastscribe.errors import UsageError
from fastscribe.results.formats.writers import to_jsonl
from tests.conftest import AUDIO, MODELS
from tests.helpers.forked_workers import forked_workers

pa = pytest.importorskip("pyarrow", reason="needs the extra ray")
pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = pytest.mark.posix
FIRST, SILENCE = next(AUDIO.glob("01_*")), next(AUDIO.glob("e05_*"))
MODEL, OPTIONS = str(MODELS / "ctc" / "model.nemo"), Options(threads=1)


@pytest.fixture(scope="module")
def transcriber() -> Iterator[fastscribe.ray.Transcriber]:
    with forked_workers():
        found = fastscribe.ray.Transcriber(MODEL, device="cpu", dtype="fp32", root=str(AUDIO), options=OPTIONS)
        yield found
        found._transcriber.close()


def test_rows_stay_in_order_with_all_their_columns(transcriber, tmp_path: Path) -> None:
    (tmp_path / "corrupt.flac").write_bytes(b"fLaC" + bytes(100))
    paths = [FIRST.name, str(tmp_path / "corrupt.flac"), None, SILENCE.name, str(FIRST), "", FIRST.name]
    offsets = [None, None, None, None, 1.0, None, None]
    tags = [[{"name": "x", "parts": [[1], []]}]] + [None] * 6
    table = pa.table({"path": paths, "offset": offsets, "duration": [None] * 4 + [1.5, -1.0, None], "tags": tags})
    found = transcriber(table)
    assert found.column_names[:4] == table.column_names and found.select(table.column_names).equals(table)
    rows = found.to_pylist()
    assert [row["error"] is None for row in rows] == [True, False, False, True, True, False, True]
    local = fastscribe.Transcriber.load(MODEL, "cpu", "fp32", OPTIONS)
    [expected] = local.transcribe(FIRST)
    assert isinstance(expected, fastscribe.Transcript) and rows[0]["text"] == rows[6]["text"] == expected.text
    objects = [json.loads(row["transcript"]) for row in rows]
    assert objects[0] == json.loads(to_jsonl(expected)) | {"audio_filepath": objects[0]["audio_filepath"]}
    assert rows[3]["text"] == "" and objects[3]["words"] == []
    assert 1.0 < objects[4]["words"][-1]["end"] + 1.0 <= 2.6 and len(objects[4]["words"]) < len(objects[0]["words"])
    assert rows[2]["error"] == "input failed: no path or URL in column path" and rows[2]["text"] is None
    assert objects[1]["error"]["stage"] in rows[1]["error"]


def test_the_schema_is_the_same_for_empty_and_failed_batches(transcriber) -> None:
    good, silent, bad = (transcriber({"path": np.array([str(path)])}) for path in (FIRST, SILENCE, "gone.wav"))
    assert good.schema.equals(silent.schema) and good.schema.equals(bad.schema)
    assert transcriber(pa.table({"path": pa.array([], pa.string())})).schema.equals(good.schema)


def test_a_manifests_columns(transcriber) -> None:
    """`audio_filepath` comes before `path`, and the reference stays in `text`, as in the rows of transcripts.jsonl."""
    table = pa.table({"path": ["gone.wav"], "audio_filepath": [FIRST.name], "text": ["reference"]})
    [row] = transcriber(table).to_pylist()
    assert row["text"] == "reference" and row["pred_text"] and row["error"] is None


def test_a_pandas_frame_and_no_column_with_paths(transcriber) -> None:
    pandas = pytest.importorskip("pandas")
    assert transcriber(pandas.DataFrame({"path": [FIRST.name]}))["text"][0].as_py()
    with pytest.raises(UsageError, match="no column audio_filepath or path among file: path_column names"):
        transcriber(pa.table({"file": [FIRST.name]}))
