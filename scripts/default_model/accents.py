"""English phonemes, and how speakers whose first language is Mandarin may say them (for what reads to the packaged model)."""

from __future__ import annotations

import random
import re
import subprocess

STRENGTH = (0.3, 1.0)  # of a speaker's accent: a factor on all chances
FLAT_CHANCE, FLAT_SHARE = 0.4, 0.6  # of speakers who drop stresses, and of the stresses that they drop
# What a phoneme (IPA, as espeak-ng writes it) may become, with the chance. A speaker keeps to one sound.
SOUNDS = {
    "θ": (("s", "f", "s"), 0.7),
    "ð": (("z", "d"), 0.7),
    "v": (("w", "w", "f"), 0.5),
    "æ": (("ɛ",), 0.5),
    "iː": (("ɪ",), 0.3),
    "ɪ": (("i",), 0.4),
    "ʊ": (("u",), 0.3),
    "ɾ": (("t",), 0.8),
    "ɹ": (("l",), 0.12),
    "l": (("ɹ",), 0.12),
}
LAST_SOUNDS = {"z": ("s", 0.6), "n": ("ŋ", 0.25), "ŋ": ("n", 0.25)}  # at the end of a word
STOPS, DROPPED_CHANCE, VOWEL_CHANCE = "tdkpbɡ", 0.25, 0.15  # at the end of a word: left out, or with a vowel behind
_SOUND = re.compile("iː|.")


def phonemes(text: str, language: str) -> str:
    """Return the phonemes of a sentence (IPA) as espeak-ng has them, with its last mark."""
    command = ["espeak-ng", "-q", "--ipa", "-v", language, text]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return re.sub(r"\s*\n\s*", ", ", said) + text[-1]


def mandarin(phonemes: str, rng: random.Random) -> str:
    """Return the phonemes of a sentence, of which some are replaced, left out or added; words stay apart.

    >>> mandarin("ðə θˈɪŋ, ɹˈɛd kˈæt.", random.Random(5))
    'zə sˈiŋ, ɹˈɛd kˈæt.'
    """
    strength, is_flat = rng.uniform(*STRENGTH), rng.random() < FLAT_CHANCE
    chosen = {sound: rng.choice(others) for sound, (others, _) in SOUNDS.items()}

    def is_chosen(chance: float) -> bool:
        return rng.random() < chance * strength

    def word(found: re.Match[str]) -> str:
        sounds = _SOUND.findall(found[0])
        said = []
        for place, sound in enumerate(sounds):
            if sound in LAST_SOUNDS and place == len(sounds) - 1:
                other, chance = LAST_SOUNDS[sound]
                sound = other if is_chosen(chance) else sound
            elif sound in SOUNDS and (place or sound not in "lɹ"):
                sound = chosen[sound] if is_chosen(SOUNDS[sound][1]) else sound
            elif sound in "ˈˌ" and is_flat and is_chosen(FLAT_SHARE):
                sound = ""
            said.append(sound)
        if len(said) > 2 and said[-1] in STOPS:
            if is_chosen(DROPPED_CHANCE):
                said.pop()
            elif is_chosen(VOWEL_CHANCE):
                said.append("ə")
        return "".join(said)

    return re.sub(r"[^\s,.?!]+", word, phonemes)
