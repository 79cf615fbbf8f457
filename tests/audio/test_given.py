"""What a Python caller gives becomes a Source, or one Failure that says what is wrong."""

from __future__ import annotations

import io
import pickle
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from fastscribe import Audio, AudioError, Failure
from fastscribe.audio.given import all_of, is_one, sources
from fastscribe.audio.media import EncodedBytes, FileObject
from fastscribe.audio.probe import probe
from fastscribe.types import Samples, Source

RATE = 16_000
STEREO_SC = np.arange(200, dtype=np.int16).reshape(100, 2)


def found(*inputs: object) -> list[Source | Failure]:
    return list(sources(inputs, Counter()))


def samples_of(item: object) -> np.ndarray:
    [source] = found(item)
    assert isinstance(source, Source) and isinstance(source.file, Samples), source
    assert source.file.sample_rate == RATE
    return source.file.samples_SC


def problem(item: object) -> str:
    [failure] = found(item)
    assert isinstance(failure, Failure) and failure.stage == "input" and failure.key in (0, failure.path)
    assert "\n" not in failure.message
    return failure.message


@pytest.mark.parametrize(
    "item",
    [
        (STEREO_SC, RATE),
        (STEREO_SC.astype(">i2"), np.int64(RATE)),
        (torch.from_numpy(STEREO_SC.T.copy()), RATE),
        (torch.from_numpy(STEREO_SC.T.copy()), torch.tensor(RATE)),
        (STEREO_SC, np.array(RATE)),
        Audio(STEREO_SC, RATE),
        {"array": STEREO_SC.T, "sampling_rate": RATE, "path": None},
    ],
)
def test_layouts(item):
    samples_SC = samples_of(item)
    assert samples_SC.dtype == np.int16
    np.testing.assert_array_equal(samples_SC, STEREO_SC)


@pytest.mark.parametrize("item", [STEREO_SC[:, 0], torch.from_numpy(STEREO_SC[:, 0].copy()), Audio(STEREO_SC[:, 0])])
def test_samples_alone_are_16_khz_mono(item):
    np.testing.assert_array_equal(samples_of(item), STEREO_SC[:, :1])


@pytest.mark.parametrize(
    "array",
    [
        np.full(5, 0.25, np.float64),
        np.full(5, 0.25, np.float16),
        np.full(5, 1 << 29, np.int32),
        np.full(5, 32, np.int8),
        np.full(5, 160, np.uint8),
        torch.full((5,), 0.25, dtype=torch.bfloat16, requires_grad=True),
    ],
)
def test_scales(array):
    samples_SC = samples_of((array, RATE))
    assert samples_SC.dtype == np.float32 and samples_SC.shape == (5, 1)
    np.testing.assert_array_equal(samples_SC, 0.25)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (np.zeros((9, 1)), "2 dimensions without their rate"),
        (Audio(torch.zeros(1, 9)), "2 dimensions without their rate"),
        ((np.zeros(9), None), "the second is the sample rate"),
        ({"array": np.zeros(9)}, "without its sampling_rate"),
        ((np.zeros(9), 16), "sample rate of 16 Hz"),
        ((np.zeros(9), "16k"), "sample rate of 16k Hz"),
        ((np.zeros(9), float("inf")), "sample rate of inf Hz"),
        ((np.zeros(9), [16000]), "sample rate of"),
        ((np.zeros(9), 16_000.5), "whole number"),
        ((np.zeros((2, 100)), RATE), "must be transposed"),
        ((torch.zeros(100, 2), RATE), "must be transposed"),
        ((np.zeros((100, 0)), RATE), "holds no channels"),
        ((torch.zeros(0, 100), RATE), "holds no channels"),
        ((np.zeros((2, 2, 2)), RATE), "3 dimensions"),
        ((np.float32(1.0), RATE), "float32 is no recording"),
        ((np.zeros(9, np.int64), RATE), "array of int64"),
        ((np.array([None] * 9), RATE), "array of object"),
        ((np.zeros(9, bool), RATE), "array of bool"),
        (("a.wav", RATE), "a file states its own"),
        (Audio(b"abc", RATE), "a file states its own"),
        ({"text": "hello"}, "a dict without audio"),
        (io.StringIO("RIFF"), "mode 'rb'"),
        (7, "int is no recording"),
        (["a.wav"], "list is no recording"),
        (Audio(b"abc", offset_s=-1), "offset_s is -1"),
        (Audio(b"abc", duration_s="2"), "duration_s is '2'"),
        (Audio(b"abc", track=-1), "track is -1"),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else type(value).__name__
    ),  # no addresses, which differ between workers
)
def test_one_clear_error(item, words):
    assert words in problem(item)


def test_a_manifest_is_not_cut(tmp_path: Path):
    manifest = tmp_path / "a.jsonl"
    manifest.write_text('{"audio_filepath": "a.wav"}\n')
    assert "of their own" in problem(Audio(manifest, offset_s=1.0))


def test_keys_and_names(tmp_path: Path):
    (tmp_path / "a.wav").write_bytes(b"x")
    path = str(tmp_path / "a.wav")
    with open(path, "rb") as file:
        items = (
            path,
            Audio(tmp_path, key=("any", "object")),
            b"x",
            Audio(file, offset_s=0.5),
            Audio(b"x", key="call-7"),
        )
        one = found(*items)
    assert [source.key for source in one] == [path, ("any", "object"), 2, 3, "call-7"]
    assert [source.path for source in one] == [path, path, "input 2", path, "call-7"]
    assert one[3].id.endswith("a.wav@500") and one[4].id == "call-7"
    [named] = found({"bytes": None, "path": path})
    assert (named.file, named.key) == (path, path)
    [missing] = found(Audio(tmp_path / "gone.wav", key=5))
    assert isinstance(missing, Failure) and missing.key == 5
    refused = found(
        b"x", Audio(path, offset_s=-1), Audio(path, 16_000), Audio(path, key=6, track=-1), Audio(b"", track=-1)
    )
    assert [one.key for one in refused if isinstance(one, Failure)] == [path, path, 6, 4]


class Decoder:
    """Hugging Face datasets 4 give such an object, which decodes on demand."""

    def __getitem__(self, name: str) -> object:
        return {"array": STEREO_SC[:, 0], "sampling_rate": RATE}[name]


def test_rows_of_a_dataset():
    assert is_one(Decoder())
    for item in (Decoder(), Audio(Decoder()), Audio({"array": STEREO_SC[:, 0], "sampling_rate": RATE})):
        np.testing.assert_array_equal(samples_of(item)[:, 0], STEREO_SC[:, 0])
    [keyed] = found(Audio(Decoder(), key="row 5", offset_s=0.001))
    assert (keyed.key, keyed.offset_s) == ("row 5", 0.001)


def test_media_of_data(tmp_path: Path):
    class Stream(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return b"streamed"

    kinds = found(b"abc", bytearray(b"abc"), memoryview(b"abc"), {"bytes": b"abc"}, io.BytesIO(b"abc"), Stream())
    assert [type(source.file) for source in kinds] == [EncodedBytes] * 4 + [FileObject, EncodedBytes]
    assert kinds[5].file.content == b"streamed"


def test_arrays_are_copied_before_the_next_is_made():
    memory = np.zeros(5, np.int16)

    def blocks():
        for value in range(3):
            memory[:] = value
            yield memory, RATE

    assert [source.file.samples_SC[0, 0] for source in sources(blocks(), Counter())] == [0, 1, 2]


def test_one_or_many():
    array = np.zeros(5, np.int16)
    for one in (
        "a.wav",
        Path("a.wav"),
        b"",
        array,
        torch.zeros(2),
        (array, RATE),
        (array, torch.tensor(RATE)),
        {},
        io.BytesIO(),
        Audio(b""),
        None,
    ):
        assert is_one(one) and list(map(id, all_of(one))) == [id(one)]
    for many in ([], ("a.wav", "b.wav"), (array, array), iter(()), {"a.wav"}, [(array, RATE)]):
        assert not is_one(many)


def test_empty_samples_and_pickles():
    [source] = found((np.zeros((0, 2)), RATE))
    with pytest.raises(AudioError, match="holds no samples"):
        probe(source)
    given = pickle.loads(pickle.dumps(Audio(STEREO_SC, RATE, key="a", offset_s=0.5)))
    assert (given.sample_rate, given.key, given.offset_s) == (RATE, "a", 0.5)
    np.testing.assert_array_equal(given.data, STEREO_SC)


def test_tensors_are_known_without_importing_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    np.testing.assert_array_equal(samples_of((STEREO_SC, RATE)), STEREO_SC)
    assert "torch" not in sys.modules
