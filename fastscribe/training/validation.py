"""Measure the error rates of the current weights, decoded as `fastscribe transcribe` decodes.

Whether a trained model is better than the model that the run began with, or only luckier, is measured on the same recordings,
so that the errors of each recording are compared, and what is hard for both cancels. The standard error of the difference is
that of a ratio of sums with recordings as independent draws (Cochran 1977, 6.4): the errors of a recording hang together. It is
at least the one that single words would give, as McNemar (1947) counts them. Without that a few recordings that happen to
change alike would have none.

Shapes: B batch, S samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import DecoderName, Options
from fastscribe.decode.decoder import Parts
from fastscribe.decode.families import DECODERS
from fastscribe.errors import UsageError
from fastscribe.evaluation.scores import Edits, Pair, normalizer, score_pairs
from fastscribe.pipeline.batch_layout import is_zero
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.training.corpus import Example, Request
from fastscribe.training.dataloader import AudioBatch, AudioDataLoader
from fastscribe.training.scoring import Scoring, ValidationSet
from fastscribe.types import Batch, Float64Array

Rates = dict[str, float]
_MAX_S = 160.0  # audio in a batch


@dataclass(frozen=True)
class ValidationResult:
    """Error rates as fractions (they may exceed 1).

    Attributes:
        rates: of all recordings that decide. `wer` and `cer` by the run's normaliser, `exact_wer` with case and punctuation.
        sets: rates of each validation set, if there are several; of one without speech, what is written for it per
            minute: `words_per_min` and `characters_per_min`.
        deciding: the rate that decides which model is best.
        counts: errors and words (or characters) of each recording that decides.
        exact_counts: errors and words of each, with case and punctuation.
    """

    rates: Rates
    sets: Mapping[str, Rates]
    deciding: float
    counts: Counts
    exact_counts: Counts

    def to_json(self) -> dict[str, Any]:
        sets = {"sets": {name: _rounded(rates) for name, rates in self.sets.items()}} if self.sets else {}
        return {**_rounded(self.rates), **sets}


def validate(
    checkpoint: Checkpoint,
    examples: Sequence[Example],
    loader: AudioDataLoader,
    device: str,
    dtype: str,
    decoder: DecoderName | None = None,
    scoring: Scoring = Scoring(),  # noqa: B008 - frozen
    sets: Sequence[ValidationSet] = (),
) -> ValidationResult:
    """Decode, without a language model, and score the examples.

    Args:
        sets: the sets that the examples are, in order; empty: they are one.

    Raises:
        UsageError: the model does not support the decoder or the device, or no recording can be read.
    """
    checkpoint = replace(checkpoint, language_model=None)
    tokenizer = checkpoint.tokenizer
    pairs: dict[int, tuple[str, str]] = {}
    for recognizer, order in _recognizers(checkpoint, device, dtype, decoder, examples):
        for rows in loader.batches(_batches(order, examples)):
            if not len(rows.examples):
                continue
            for index, token_ids in zip(rows.examples, _decoded(recognizer, rows), strict=True):
                reference = tokenizer.remove_spaces_before_punctuation(examples[index].text)
                pairs[index] = reference, tokenizer.sentence(token_ids)
    if not pairs:
        raise UsageError(f"none of the {len(examples)} recordings to validate with can be read")
    return _to_result(pairs, [example.duration_s for example in examples], scoring, sets)


def _decoded(recognizer: Recognizer, rows: AudioBatch) -> list[tuple[int, ...]]:
    """Return the tokens of each row; none for digital silence, which `transcribe` does not decode either."""
    samples_BS, lengths_B = rows.samples_BS.numpy(), rows.lengths_B.numpy()
    heard = [row for row, length in enumerate(lengths_B) if not is_zero(samples_BS[row, :length])]
    found: list[tuple[int, ...]] = [()] * len(lengths_B)
    if heard:
        hypotheses = recognizer.transcribe(Batch((), samples_BS[heard], lengths_B[heard]))
        for row, hypothesis in zip(heard, hypotheses, strict=True):
            found[row] = hypothesis.token_ids
    return found


def _recognizers(
    checkpoint: Checkpoint, device: str, dtype: str, decoder: DecoderName | None, examples: Sequence[Example]
) -> Iterator[tuple[Recognizer, list[int]]]:
    """Yield the model with a decoder for each prompt that examples ask for, and these examples, longest first."""
    by_request: dict[Request | None, list[int]] = {}
    for index in sorted(range(len(examples)), key=lambda index: -examples[index].duration_s):
        by_request.setdefault(examples[index].request, []).append(index)
    recognizer: Recognizer | None = None
    for request, order in by_request.items():
        options = replace(Options() if request is None else request.options, decoder=decoder)
        if recognizer is None:
            recognizer = Recognizer.build(checkpoint, device, dtype, options, say=lambda line: None)
        else:
            recognizer.decoder.close()
            build = DECODERS[recognizer.decoder_name].build
            prompted = build(Parts(recognizer.model, checkpoint, recognizer.device, options, lambda line: None))
            recognizer = replace(recognizer, decoder=prompted)
        yield recognizer, order


def _batches(order: Sequence[int], examples: Sequence[Example]) -> list[Any]:

    batches: list[list[int]] = []
    for index in order:
        if not batches or (len(batches[-1]) + 1) * examples[batches[-1][0]].duration_s > _MAX_S:
            batches.append([])
        batches[-1].append(index)
    return [np.array(batch) for batch in batches]


def _to_result(
    pairs: Mapping[int, tuple[str, str]],
    durations_s: Sequence[float],
    scoring: Scoring,
    sets: Sequence[ValidationSet],
) -> ValidationResult:
    normalize = normalizer(scoring.normalizer)
    words, characters = _edits(pairs, normalize)
    edits = {"wer": words, "exact_wer": _edits(pairs, normalizer("none"))[0], "cer": characters}
    if not scoring.has_spaces:
        edits["cer"] = _edits(pairs, lambda text: normalize(text).replace(" ", ""))[1]

    def rates(indices: Iterable[int]) -> Rates:
        return {name: _total(of_name, indices).rate or 0.0 for name, of_name in edits.items()}

    deciding, by_set, end = list[int](), {}, 0
    for one in sets:
        begin, end = end, end + one.num_examples
        indices = [index for index in pairs if begin <= index < end]
        deciding += indices * one.decides
        if not indices:
            raise UsageError(f"none of the recordings of {one.name} to validate with can be read")
        if one.non_speech:  # what is written for it
            seconds = sum(durations_s[index] for index in indices)
            totals = (("words", _total(words, indices)), ("characters", _total(characters, indices)))
            by_set[one.name] = {f"{name}_per_min": 60 * total.insertions / seconds for name, total in totals}
        else:
            by_set[one.name] = rates(indices)
    counts, exact_counts = (
        {int(index): (of[index].errors, of[index].units) for index in (deciding if sets else pairs)}
        for of in (edits[scoring.metric], edits["exact_wer"])
    )
    rate = sum(errors for errors, _ in counts.values()) / (num_words(counts) or 1)
    return ValidationResult(rates(counts), by_set, rate, counts, exact_counts)


def _edits(
    pairs: Mapping[int, tuple[str, str]], normalize: Callable[[str], str]
) -> tuple[dict[int, Edits], dict[int, Edits]]:
    """Return the edits of words and of characters of each recording."""
    scored = score_pairs(Pair(normalize(reference), normalize(hypothesis)) for reference, hypothesis in pairs.values())
    found = {index: (one.words, one.characters) for index, one in zip(pairs, scored, strict=True)}
    return {index: words for index, (words, _) in found.items()}, {index: one for index, (_, one) in found.items()}


def _total(edits: Mapping[int, Edits], indices: Iterable[int]) -> Edits:
    return sum((edits[index] for index in indices), Edits())


def _rounded(rates: Rates) -> Rates:
    return {name: round(rate, 5) for name, rate in rates.items()}


def with_weights(checkpoint: Checkpoint, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Checkpoint:
    """Return the checkpoint with these weights in `dtype`, so that the validated weights are the saved ones."""
    kept = {name: tensor.cpu() for name, tensor in weights.items()}
    return replace(
        checkpoint,
        weights={name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in kept.items()},
        has_random_weights=False,
    )


Counts = Mapping[int, tuple[int, int]]  # of each recording, by its index: its errors, and the words of its reference
_CLEAR = 2.0  # standard errors
ASSUMED_RATE = 0.1  # of errors, before the model of --init has been validated


@dataclass(frozen=True)
class Gain:
    """How much lower the error rate of a trained model is than that of the start, as shares of the words.

    Words are characters where these decide.
    """

    fewer: float  # negative: more errors
    standard_error: float
    num_words: int
    num_recordings: int

    @classmethod
    def between(cls, start: Counts, trained: Counts) -> Gain:
        """Compare over the recordings that both have."""
        both = sorted(start.keys() & trained.keys())
        fewer = [start[index][0] - trained[index][0] for index in both]
        words = [start[index][1] for index in both]
        num_words = sum(words)
        return cls(sum(fewer) / num_words if num_words else 0.0, _standard_error(fewer, words), num_words, len(both))

    @property
    def is_clear(self) -> bool:
        """True if chance would hardly explain it."""
        return self.fewer > _CLEAR * self.standard_error

    @property
    def words_to_tell(self) -> int | None:
        """About how many words would make this gain a clear one; None if there is no gain."""
        if self.fewer <= 0:
            return None
        exact = self.num_words * (_CLEAR * self.standard_error / self.fewer) ** 2
        step: int = 10 ** max(0, len(str(math.ceil(exact))) - 2)  # two digits are enough
        return math.ceil(exact / step) * step

    def to_json(self) -> dict[str, Any]:
        return {
            "fewer": round(self.fewer, 5),
            "standard_error": round(self.standard_error, 5),
            "num_words": self.num_words,
            "num_recordings": self.num_recordings,
            "is_clear": self.is_clear,
            "words_to_tell": self.words_to_tell,
        }


def num_words(counts: Mapping[int, tuple[float, int]]) -> int:
    """Return the words of all references."""
    return sum(words for _, words in counts.values())


def assumed_counts(
    examples: Sequence[Example], scoring: Scoring, sets: Sequence[ValidationSet]
) -> Mapping[int, tuple[float, int]]:
    """Return the words of each recording that decides, with as many errors as ASSUMED_RATE gives. Decodes nothing."""
    unheard = {index: (example.text, "") for index, example in enumerate(examples)}
    counts = _to_result(unheard, [example.duration_s for example in examples], scoring, sets).counts
    return {index: (ASSUMED_RATE * words, words) for index, (_, words) in counts.items()}


def least_gain(start: Mapping[int, tuple[float, int]]) -> float:
    """Return about the smallest gain that a validation set can tell from chance; 0 of a start without errors.

    The standard error of the start's own rate stands for that of the difference, which is not known before training.
    """
    return _CLEAR * _standard_error([one for one, _ in start.values()], [one for _, one in start.values()])


def _standard_error(errors: Sequence[float], words: Sequence[int]) -> float:

    errors_R: Float64Array = np.array(errors, np.float64)
    words_R: Float64Array = np.array(words, np.float64)
    total, count = float(words_R.sum()), len(errors_R)
    if not total:
        return 0.0
    residuals_R = errors_R - errors_R.sum() / total * words_R
    of_recordings = float(residuals_R @ residuals_R) * count / max(1, count - 1)
    return math.sqrt(max(of_recordings, float(np.abs(errors_R).sum()))) / total
