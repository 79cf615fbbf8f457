"""The Booster: lists of rows are prepared once, joined in any order, and named once if they cannot be written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastscribe.context import booster as module
from fastscribe.context.booster import Booster
from fastscribe.context.boosting import Boost
from fastscribe.text.tokenizer import from_characters
from fastscribe.types import AudioInfo, Batch, Phrase, Utterance

LETTERS = from_characters([" ", "a", "b", "c"])
A, B, C = ((Phrase(letter * 3),) for letter in "abc")


def batch(*lists: tuple[Phrase, ...]) -> Batch:
    utterances = tuple(Utterance(AudioInfo("x", "x", 1, 1, 1, boost=phrases), 0, 1) for phrases in lists)
    return Batch(utterances, np.zeros((0, 0), np.float32), np.zeros(len(lists), np.int64), ())


def booster(*phrases: Phrase, lines: list[str] | None = None) -> Booster:
    return Booster(phrases, LETTERS, "model", torch.device("cpu"), ([] if lines is None else lines).append)


def boosted_letters(boost: Boost | None) -> list[str]:
    """The letters that begin a phrase of each row, or go on with one, at the text's beginning."""
    assert boost is not None
    tables, states_BK = boost.tables, boost.starts()
    scores_BV = tables.scores(states_BK, tables.following(states_BK))
    return ["".join(LETTERS.pieces[i] for i in torch.nonzero(row > 0)[:, 0].tolist()) for row in scores_BV]


@pytest.mark.parametrize("run", [(), B])
def test_each_row_has_its_own_list(run: tuple[Phrase, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def build_graph(*arguments):
        built.append(arguments)
        return real(*arguments)

    real = module.build_graph
    monkeypatch.setattr(module, "build_graph", build_graph)
    prepared, always = booster(*run), "".join(phrase.text[0] for phrase in run)
    for lists in ((A, (), C), (C, A, A), (C, C), (A,), ((), C, ())):
        found = boosted_letters(prepared.boost(batch(*lists)))
        assert found == ["".join(sorted(always + "".join(one.text[0] for one in phrases))) for phrases in lists]
    assert len(built) == len(run) + 3  # the run's list, A and C together, and each alone when it comes again
    none = prepared.boost(batch((), ()))
    assert (none is None) if not run else boosted_letters(none) == [always] * 2


def test_kept_lists_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_KEPT_STATES", 5)
    prepared = booster()
    for lists in ((A, B, C), (C, B, A)):
        assert boosted_letters(prepared.boost(batch(*lists))) == [phrases[0].text[0] for phrases in lists]
        assert len(prepared._kept) <= 2


def test_unknown_phrases_of_rows_are_one_line_a_list() -> None:
    lines: list[str] = []
    prepared = booster(lines=lines)
    lists = [(Phrase(f"x{number}"), Phrase(f"y{number}"), *A) for number in range(20)]
    for _ in range(2):
        assert boosted_letters(prepared.boost(batch(*lists))) == ["a"] * 20
    assert len(lines) == 10 and lines[0].endswith("the model does not write x, 0, y: x0, y0")
    assert "nothing is said about later rows" in lines[-1]


def test_heavy_phrases_are_named() -> None:
    lines: list[str] = []
    prepared = booster(Phrase("a", 5.0), Phrase("b", 5.5), lines=lines)
    assert (
        len(lines) == 1
        and lines[0].startswith("--boost: phrases with a weight above 5")
        and lines[0].endswith("being spoken: b")
    )
    prepared.boost(batch((Phrase("c", 10.0),)))
    assert lines[1:] == ["boost: phrases with a weight above 5 are also written without being spoken: c"]


def test_states_of_joined_lists_lead_on() -> None:
    """After two letters of a phrase of the last list, the third ends it. Inside a word, the run's does not begin."""
    boost = booster(*A).boost(batch(B, C))
    assert boost is not None
    states_BK = boost.starts()
    for _ in range(2):
        next_BKV = boost.tables.following(states_BK)
        states_BK = boost.tables.advance(next_BKV, torch.tensor([2, 3]))
    at_risk = boost.tables.at_risk(states_BK)
    scores_BV = boost.tables.scores(states_BK, boost.tables.following(states_BK))
    assert at_risk.tolist() == [2 * module.WEIGHT] * 2
    w = module.WEIGHT
    assert scores_BV.tolist() == [[-2 * w, -2 * w, w, -2 * w], [-2 * w, -2 * w, -2 * w, w]]
