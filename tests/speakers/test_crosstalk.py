"""Words that leak into another channel are told from words that two people say at the same time."""

from __future__ import annotations

import numpy as np
import pytest

from fastscribe.speakers.crosstalk import Levels, SharedWords, find_shared
from fastscribe.types import Float64Array, Word

FRAME_S = 0.02


def words(text: str, start_s: float = 0.0, step_s: float = 0.4) -> list[Word]:
    """Return words of 0.3 s each; "-" is a pause of a word's length."""
    found = ((start_s + number * step_s, one) for number, one in enumerate(text.split()))
    return [Word(one, at_s, at_s + 0.3, 1.0) for at_s, one in found if one != "-"]


def energy(*spans: tuple[float, float, float], length_s: float = 20.0) -> Float64Array:
    """Return energies of frames: (begin, end, dB) over a floor of -70 dB."""
    found = np.full(round(length_s / FRAME_S), 1e-7)
    for begin_s, end_s, level_db in spans:
        found[round(begin_s / FRAME_S) : round(end_s / FRAME_S)] += 10 ** (level_db / 10)
    return found


def leaked(channels: list[list[Word]], energies: list[Float64Array]) -> list[set[str]]:
    shared = find_shared(channels)
    levels = Levels(energies, FRAME_S, channels, shared)
    numbers = levels.find_leaked(shared)
    return [{own[number].text for number in found} for own, found in zip(channels, numbers, strict=True)]


def texts(run: SharedWords, channels: list[list[Word]]) -> list[str]:
    return [channels[run.channels[0]][first].text for first, _ in run.pairs]


def test_the_same_words_at_the_same_time_are_shared() -> None:
    channels = [words("I want to cancel it"), words("I want to cancel", 0.2)]
    [run] = find_shared(channels)
    assert texts(run, channels) == ["I", "want", "to", "cancel"] and run.between == ((), ())
    assert find_shared([channels[0], words("I want to cancel it", 8.0)]) == []
    assert find_shared([channels[0], words("Please hold the line")]) == []


def test_case_and_punctuation_do_not_count_and_similar_words_join_a_run() -> None:
    channels = [words("please cancel my new subscription, today"), words("- council My knew subscriptions")]
    [run] = find_shared(channels)
    assert texts(run, channels) == ["cancel", "my", "new", "subscription,"] and run.between == ((), ())
    channels[1] = words("- cancel mice canoe subscription")
    [run] = find_shared(channels)
    assert texts(run, channels) == ["cancel", "subscription,"] and run.between == ((2, 3), (1, 2))


def test_a_pause_ends_a_run() -> None:
    text = "yes it is - - - - thank you"
    channels = [words(text), words(text)]
    assert [texts(run, channels) for run in find_shared(channels)] == [["yes", "it", "is"], ["thank", "you"]]


@pytest.mark.parametrize("leak_db", [-30, -20, -10])
@pytest.mark.parametrize("gain_db", [-12, 0, 12])
def test_softer_words_leak_whatever_the_gain_of_a_channel(leak_db: float, gain_db: float) -> None:
    """The second channel has words of its own, so its level is known."""
    channels = [words("how can I help you"), [*words("how can I help you"), *words("my bill is wrong", 6.0)]]
    energies = [energy((0, 2, -25)), energy((0, 2, -25 + leak_db + gain_db), (6, 8, -25 + gain_db))]
    assert leaked(channels, energies) == [set(), {"how", "can", "I", "help", "you"}]
    assert leaked(channels[::-1], energies[::-1]) == [{"how", "can", "I", "help", "you"}, set()]


def test_two_people_may_say_the_same() -> None:
    channels = [[*words("yes"), *words("what is it", 4.0)], [*words("yes"), *words("my bill is wrong", 6.0)]]
    for second_db in (-25, -37):  # the second channel has another gain
        energies = [energy((0, 1, -25), (4, 6, -25)), energy((0, 1, second_db), (6, 8, second_db))]
        assert leaked(channels, energies) == [set(), set()]


@pytest.mark.parametrize("leak_db", [-20, -10])
def test_a_channel_that_has_nothing_but_leaked_words(leak_db: float) -> None:
    """Neither has words that only it has, or the speaker's channel alone has them."""
    said = "how can I help you"
    energies = [energy((0, 2, -25)), energy((0, 2, -25 + leak_db))]
    assert leaked([words(said), words(said)], energies) == [set(), set(said.split())]
    longer = words(said + " today sir")
    assert leaked([longer, words(said)], [energy((0, 3, -25)), energies[1]]) == [set(), set(said.split())]


def test_a_run_goes_on_from_one_speaker_to_the_other() -> None:
    """Both channels have all words, and each word leaks into the channel of who does not say it."""
    said = "can I help you yes my bill is wrong"
    energies = [energy((0, 1.55, -25), (1.55, 4, -40)), energy((0, 1.55, -40), (1.55, 4, -25))]
    channels = [words(said), words(said)]
    assert leaked(channels, energies) == [{"yes", "my", "bill", "is", "wrong"}, {"can", "I", "help", "you"}]


def test_an_own_word_between_leaked_ones_stays() -> None:
    channels = [words("how can - I help you"), words("how can no I help you")]
    channels[1] += words("my bill is wrong", 6.0)
    energies = [energy((0, 3, -25)), energy((0, 0.75, -45), (0.75, 1.15, -24), (1.15, 3, -45), (6, 8, -25))]
    [run] = find_shared(channels)
    assert run.between == ((), (2,))
    assert leaked(channels, energies) == [set(), {"how", "can", "I", "help", "you"}]


def test_three_channels() -> None:
    said = "can you hear me"
    channels = [words(said), [*words(said), *words("yes I can", 6.0)], words("we can too", 10.0)]
    energies = [energy((0, 2, -25)), energy((0, 2, -45), (6, 8, -25)), energy((0, 2, -50), (10, 12, -25))]
    assert leaked(channels, energies) == [set(), set(said.split()), set()]


def test_leaked_words_that_were_misheard_go_too() -> None:
    """Their loudness tells them from what the channel's own speaker says meanwhile, and from soft words in a pause."""
    channels = [words("how can I help you now sir"), words("how can I kelp bull no sure mum")]
    channels[1] += words("my bill is wrong", 6.0)
    spans = [(0, 2.45, -45.0), (2.45, 2.75, -28.0), (2.75, 3.5, -45.0), (6.0, 8.0, -25.0)]
    energies = [energy((0, 2.75, -25)), energy(*spans)]
    assert leaked(channels, energies) == [set(), {"how", "can", "I", "kelp", "bull", "no"}]


def test_a_lone_word_needs_a_larger_margin() -> None:
    own = words("what is it", 4.0), words("my bill is wrong", 6.0)
    for said, expected in (("yes", set()), ("yes it is", {"yes", "it", "is"})):
        channels = [[*words(said), *own[0]], [*words(said), *own[1]]]
        energies = [energy((0, 2, -25), (4, 6, -25)), energy((0, 2, -29.5), (6, 8, -25))]
        assert leaked(channels, energies) == [set(), expected]


def test_soft_words_stay_where_the_other_channel_has_sound_but_no_words() -> None:
    channels = [words("how can I help you"), words("how can I help you")]
    channels[1] += [*words("my bill is wrong", 6.0), *words("softly now", 10.0)]
    energies = [energy((0, 2, -25), (10, 12, -25)), energy((0, 2, -45), (6, 8, -25), (10, 12, -50))]
    assert leaked(channels, energies) == [set(), {"how", "can", "I", "help", "you"}]
