"""What speakers add to a run: what is needed, and nothing that another process could not get."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import pytest

from fastscribe import Options, UsageError
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.pipeline.interfaces import PLAIN_INPUTS, PLAIN_TRANSCRIPTS, Additions
from fastscribe.pipeline.model_facts import ModelFacts
from fastscribe.speakers.assembly import Dialogues, RttmTranscripts
from fastscribe.speakers.recordings import ChannelInputs, RttmInputs
from fastscribe.speakers.stage import SpeakerStage
from tests.conftest import MODELS

CONFIG = read_checkpoint(MODELS / "tdt_demo").config
FACTS = ModelFacts("CPU", "fp32", "tdt", 1, "full", 0.08, False, False)
LINE = "SPEAKER a 1 0 4 <NA> <NA> A <NA> <NA>\n"


def added(options: Options, facts: ModelFacts = FACTS) -> Additions:
    return SpeakerStage(options).add_to(Additions(), CONFIG, options, facts)


def test_a_run_without_speakers_is_as_it_was() -> None:
    assert added(Options()) == Additions(PLAIN_INPUTS, PLAIN_TRANSCRIPTS)


def test_channels_can_be_transcribed_in_any_process() -> None:
    options = Options(speakers="channels", speaker_names=("Ann", "Bob"))
    found = added(options)
    assert found == Additions(ChannelInputs(("Ann", "Bob")), Dialogues(("Ann", "Bob")))
    assert not found.needs_whole_recordings and not options.needs_whole_recordings
    assert pickle.loads(pickle.dumps((found.inputs, found.transcripts))) == (found.inputs, found.transcripts)
    assert found.inputs.needs_file and not found.inputs.holds


def test_turns_from_elsewhere_stay_in_this_process(tmp_path: Path) -> None:
    file = tmp_path / "turns.rttm"
    file.write_text(LINE)
    options = Options(rttm=str(file))
    stage = SpeakerStage(options)
    found = stage.add_to(Additions(), CONFIG, options, FACTS)
    assert found.needs_whole_recordings and options.needs_whole_recordings
    assert isinstance(found.inputs, RttmInputs) and isinstance(found.transcripts, RttmTranscripts)
    before = stage.digests()
    assert set(before) == {"rttm"}
    stage.refresh()
    assert stage.digests() == before
    file.write_text(LINE + LINE.replace("0 4", "5 6"))
    stage.refresh()
    assert stage.digests() != before


@pytest.mark.parametrize("chosen", [{"speakers": "m.nemo"}, {"speakers": "channels", "voices": "v.nemo"}], ids=str)
def test_models_of_speakers_see_whole_recordings(chosen: dict[str, Any]) -> None:
    assert Options(**chosen).needs_whole_recordings
    assert not added(Options(**chosen)).needs_whole_recordings  # without a model, as in a process that only plans


def test_turns_that_are_missing_end_a_run_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        SpeakerStage(cast(Any, Options(rttm=str(tmp_path / "none.rttm"))))
