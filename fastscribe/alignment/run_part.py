"""What `fastscribe align` does in a run: its model times the words of known texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastscribe._system.quick_start import quick_start
from fastscribe.alignment.script import missing_line, unsearched_line, unwritten_line
from fastscribe.alignment.texts import Texts
from fastscribe.cli.run_part import Engine, RunPart

if TYPE_CHECKING:
    from fastscribe.alignment.aligner import Aligner
    from fastscribe.cli.run_part import TranscribeJob
    from fastscribe.transcriber import Transcriber


class _AlignEngine(Engine):
    """Loads a model that aligns texts."""

    takes_helpers = False

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self.aligner: Aligner | None = None

    @contextmanager
    def load(self, job: TranscribeJob, say: Callable[[str], None]) -> Iterator[Transcriber]:
        """Yield an aligner of the texts."""
        with quick_start():
            from fastscribe.alignment.aligner import Aligner

        self.aligner = Aligner.load(Path(job.model), job.device, job.dtype, job.options, say).with_texts(self._texts)
        yield self.aligner


class AlignPart(RunPart):
    """The part of `fastscribe align` in a run.

    Args:
        texts: The texts of the recordings.
    """

    def __init__(self, texts: Texts) -> None:
        super().__init__()
        self._texts = texts
        self.engine: _AlignEngine = _AlignEngine(texts)

    @property
    def lines(self) -> Sequence[str]:
        """How files were read, which words were not heard, where none were looked for, which characters are not written."""
        assert self.engine.aligner is not None
        counts = self.engine.aligner.text_aligner
        return [
            *self._texts.lines,
            *([unwritten_line(counts.unwritten, counts.num_untimed)] if counts.unwritten else ()),
            *([missing_line(counts.missing, counts.num_missing, counts.num_words)] if counts.num_missing else ()),
            *([unsearched_line(counts.unsearched_s)] if counts.unsearched_s else ()),
        ]
