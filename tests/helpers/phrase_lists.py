"""The definition of boosted phrases, in one text and without an automaton: context/ is tested against it.

The state is the longest end of the tokens so far that begins a phrase, as a tuple of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastscribe.context.phrases import TokenPath

State = tuple[int, ...]


class PhraseList:
    """The phrases of one list.

    Args:
        paths: Tokens and gains of the phrases.
        weight: Factor of all gains.
        start_id: The token before a text's first one.
    """

    def __init__(self, paths: Iterable[TokenPath], weight: float, start_id: int = -1) -> None:
        self._gains: dict[State, float] = {}  # of the last token of each beginning of a phrase
        self._whole: set[State] = set()
        for path in paths:
            for length, gain in enumerate(path.gains, start=1):
                beginning = path.ids[:length]
                self._gains[beginning] = max(self._gains.get(beginning, 0.0), weight * gain)
            if path.ids:
                self._whole.add(path.ids)
        self.start = self.after((), start_id)

    def after(self, state: State, token: int) -> State:
        """Return the state after a token."""
        tokens = (*state, token)
        return next(tokens[begin:] for begin in range(len(tokens) + 1) if self._begins(tokens[begin:]))

    def _begins(self, tokens: State) -> bool:
        return not tokens or tokens in self._gains

    def score(self, state: State, token: int) -> float:
        """Return what a token adds to the score of a text."""
        after = self.after(state, token)
        if len(after) == len(state) + 1:
            return self._gains[after]
        return self._total(after) - self.at_risk(state)

    def at_risk(self, state: State) -> float:
        """Return what leaving a state takes back: its score, less that of the best whole phrase in it."""
        parts = (state[i:j] for i in range(len(state)) for j in range(i + 1, len(state) + 1))
        return max(
            0.0, self._total(state) - max((self._total(part) for part in parts if part in self._whole), default=0)
        )

    def _total(self, state: State) -> float:
        return sum(self._gains[state[:length]] for length in range(1, len(state) + 1))


class PhraseLists:
    """Several lists that all apply to one text."""

    def __init__(self, lists: Sequence[PhraseList]) -> None:
        self.lists = lists
        self.start = tuple(one.start for one in lists)

    def after(self, states: Sequence[State], token: int) -> tuple[State, ...]:
        return tuple(one.after(state, token) for one, state in zip(self.lists, states, strict=True))

    def score(self, states: Sequence[State], token: int) -> float:
        return sum(one.score(state, token) for one, state in zip(self.lists, states, strict=True))

    def at_risk(self, states: Sequence[State]) -> float:
        return sum(one.at_risk(state) for one, state in zip(self.lists, states, strict=True))
