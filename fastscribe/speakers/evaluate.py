"""`fastscribe evaluate --speaker-references`: scores of who says what."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import typer

from fastscribe._system.text_layout import count_of
from fastscribe.cli.problems import Problems
from fastscribe.cli.terminal import say
from fastscribe.errors import ManifestError, UsageError
from fastscribe.evaluation import scores as scoring
from fastscribe.evaluation.printing import print_parts, versions
from fastscribe.evaluation.scores import NormalizerName
from fastscribe.speakers import error_report as report
from fastscribe.speakers.references import SpeakerReferences
from fastscribe.speakers.scores import EXTRA, MODULES, SpeakerEvaluation, evaluate_speakers

_NAMES_SHOWN = 5  # recordings without a result


class SpeakerScoring:
    """Scores the speakers of results.

    Args:
        paths: What --speaker-references names.
        collar_s: What DER leaves out on either side of a reference turn's begin and end.
    """

    def __init__(self, paths: Sequence[str], collar_s: float) -> None:
        self._paths, self._collar_s = paths, collar_s

    def refuse_beside(self, options: Mapping[str, object]) -> None:
        """Raise UsageError if one of these options is set."""
        given = next((name for name, value in options.items() if value), None)
        if given is not None:
            raise UsageError(f"{given} and --speaker-references exclude each other: speakers have scores of their own")

    def score(
        self,
        results: Sequence[str],
        normalizer: NormalizerName,
        problems: Problems,
        *,
        skip_failed: bool,
        as_json: bool,
    ) -> None:
        """Print the scores of who says what.

        Args:
            results: What the command takes.
            normalizer: Of the words.
            problems: Counts unusable rows.
            skip_failed: Leave failed recordings out.
            as_json: Print one JSON object.

        Raises:
            typer.Exit: Exit code 1: rows are unusable, or references have no result.
            UsageError: References cannot be read, or there is nothing to score.
        """
        scoring.check_modules(MODULES, "--speaker-references", EXTRA)
        references, evaluation = SpeakerReferences(self._paths), SpeakerEvaluation()
        normalize = scoring.normalizer(normalizer)
        for found in evaluate_speakers(results, references, normalize, self._collar_s, not skip_failed):
            if isinstance(found, ManifestError):
                problems.add([found])
            else:
                evaluation = found
        problems.report_rest()
        if not evaluation.recordings:
            raise UsageError("nothing to score: no row with speakers, of which there is a reference")
        unused = references.unused()
        if unused:
            names = ", ".join(unused[:_NAMES_SHOWN]) + (" .." if len(unused) > _NAMES_SHOWN else "")
            has_none = "has no result, and is" if len(unused) == 1 else "have no result, and are"
            say(f"{count_of(len(unused), 'recording')} of the references {has_none} not counted: {names}")
        if as_json:
            settings = {
                "normalizer": normalizer,
                "collar_s": self._collar_s,
                "failed_count_as_silence": not skip_failed,
                "unusable_rows": problems.num,
                "references_without_result": len(unused),
            }
            scorers = versions(normalizer, *MODULES)
            document = {**settings, **report.to_object(evaluation), "versions": scorers}
            print_parts([json.dumps(document, ensure_ascii=False)])
        else:
            how = "left out" if skip_failed else "counted as silence"
            failed = f"; failed recordings: {evaluation.num_failed:,}, {how}" if evaluation.num_failed else ""
            preamble = f"normalizer {normalizer}; collar {self._collar_s:g} s{failed}"
            print_parts([preamble + "\n", report.to_table(evaluation).rstrip("\n")])
        if problems.num or unused:
            raise typer.Exit(1)
