"""Synthesise sentences with many words and voices, for scripts.default_model.train_default_model --more.

    python -m scripts.default_model.make_read_sentences OUT [--hours 16] [--seed 0]
        [--texts BOOK.txt... | --words LIST... [--phrases N]] [--programs flite pico espeak-ng] [--without MANIFEST...]

The sentences are WordNet's examples, those of plain texts (UTF-8, an empty line between paragraphs), or the words of lists
(one per line), `--times` times each, in random order with function words between them, or N phrases of one or two of the
words, each a recording of its own. Lists cover a large vocabulary much
faster than books. Needs Debian's flite, espeak-ng and wordnet-base (scowl has word lists) and PyPI's ttspico (SVOX Pico).
hibari sounds like a person (PyPI's hibari-tts, a small copy of one voice of Kokoro-82M, 100 times faster than real time on one
core).
Writes OUT/<number>.flac (16 kHz) and OUT/manifest.jsonl. The packaged model's natural speech is ten hours by few speakers with
few words; this adds words, but no natural voices. Sentences that share five consecutive words with a text of `--without` are
skipped: name the test sets there. A voice is a synthesiser's voice with its own pitch and tempo: spoken slower or faster by
the synthesiser, then resampled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

from scripts.default_model import sentences

SAMPLE_RATE = 16_000
MIN_S, MAX_S = 0.3, 14.0
LITTLE_WORDS = "the the a an of and to in was he his her that with for it at on I had not but by as"
LITTLE_WORDS_CHANCE = 0.5
VOICES = {
    "flite": ("slt", "slt", "rms", "rms", "awb", "kal16"),
    "pico": ("en-US", "en-GB"),
    "espeak-ng": (
        *("en-us+f2", "en-us+f4", "en-us+m3", "en-us+m7"),
        *("en-gb+f3", "en-gb+m1", "en-us+Alicia", "en-us+Michael"),
    ),
    "hibari": ("heart",),
}
SHARES = {"flite": 0.5, "pico": 0.4, "espeak-ng": 0.1, "hibari": 0.5}
DEFAULT_PROGRAMS = ("flite", "pico", "espeak-ng")
ESPEAK_WORDS_A_MINUTE = 165
PICO_RATE, HIBARI_RATE = 16_000, 24_000
PICO = """\
import sys
from ttspico import TtsEngine
engine = TtsEngine(sys.argv[1])
engine.rate = int(sys.argv[2])
sys.stdout.buffer.write(engine.speak(sys.argv[3]))
"""


@dataclass(frozen=True)
class Voice:
    program: str
    name: str
    pitch: float  # as a factor
    tempo: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hours", type=float, default=16.0)
    parser.add_argument("--seed", type=int, default=0)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--texts", type=Path, nargs="+", help="in place of WordNet's examples")
    source.add_argument("--words", type=Path, nargs="+", help="in place of WordNet's examples")
    parser.add_argument("--times", type=int, default=6, help="that each word of --words is read")
    parser.add_argument("--phrases", type=int, metavar="N", help="of the words of --words, in place of sentences")
    parser.add_argument("--programs", nargs="+", choices=list(SHARES), default=DEFAULT_PROGRAMS)
    parser.add_argument("--without", type=Path, nargs="+", default=[], metavar="MANIFEST")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(arguments.seed)
    if arguments.words and arguments.phrases:
        found = phrases(arguments.words, arguments.phrases, rng)
    elif arguments.words:
        found = jumbled(arguments.words, arguments.times, rng)
    elif arguments.texts:
        found = sentences.written(arguments.texts)
    else:
        found = sentences.examples()
    texts = list(sentences.apart(found, arguments.without))
    texts = texts if arguments.phrases else list(passages(texts, rng))
    voices = [voice(rng, arguments.programs) for _ in texts]
    left_s = 3600 * arguments.hours
    with ThreadPoolExecutor(os.cpu_count()) as pool, (arguments.out / "manifest.jsonl").open("w") as manifest:
        for start in range(0, len(texts), 64):
            numbers = range(start, min(start + 64, len(texts)))
            for number, samples in zip(
                numbers, pool.map(read, (texts[n] for n in numbers), voices[start:]), strict=True
            ):
                duration_s = len(samples) / SAMPLE_RATE
                if not MIN_S <= duration_s <= MAX_S:
                    continue
                path = arguments.out / f"{number:06d}.flac"
                soundfile.write(path, samples, SAMPLE_RATE)
                speaker = f"{voices[number].program} {voices[number].name}"
                row = {"audio_filepath": path.name, "duration": duration_s, "text": texts[number], "speaker": speaker}
                manifest.write(json.dumps(row) + "\n")
                left_s -= duration_s
            if left_s <= 0:
                break
    print(f"{arguments.hours - left_s / 3600:.2f} hours", file=sys.stderr)


def passages(found: Iterable[str], rng: random.Random) -> Iterator[str]:
    """Yield passages of one to three sentences in random order."""
    left = sorted(set(found))
    rng.shuffle(left)
    while left:
        count = rng.choice((1, 1, 2, 2, 3))
        yield " ".join(left[:count])
        del left[:count]


def phrases(lists: list[Path], count: int, rng: random.Random) -> Iterator[str]:
    """Yield a noun with an article, a word alone, or a word and a noun."""
    words, nouns = words_of(lists), sentences.nouns()
    nouns_of_lists = [word for word in words if word in nouns]
    for _ in range(count):
        noun, word = rng.choice(nouns_of_lists), rng.choice(words)
        article = "An" if noun[0] in "aeiou" else "A"
        kinds = {f"{article} {noun}": 0.45, f"The {noun}": 0.15, word: 0.2, f"{word} {noun}": 0.2}
        yield sentences.sentence(rng.choices(list(kinds), list(kinds.values()))[0])


def words_of(lists: list[Path]) -> list[str]:
    lines = {line.strip() for path in lists for line in path.read_text(encoding="utf-8").splitlines()}
    return sorted(word for word in lines if re.fullmatch("[A-Za-z][a-z]+", word))


def jumbled(lists: list[Path], times: int, rng: random.Random) -> Iterator[str]:
    words = words_of(lists)
    little = LITTLE_WORDS.split()
    for _ in range(times):
        rng.shuffle(words)
        left = iter(words)
        while taken := list(islice(left, rng.randint(4, 8))):
            pairs = (f"{rng.choice(little)} {word}" if rng.random() < LITTLE_WORDS_CHANCE else word for word in taken)
            yield sentences.sentence(" ".join(pairs))


def voice(rng: random.Random, programs: Sequence[str]) -> Voice:
    [program] = rng.choices(programs, [SHARES[program] for program in programs])
    name = rng.choice(VOICES[program])
    return Voice(program, name, round(rng.uniform(0.87, 1.17), 2), round(rng.uniform(0.85, 1.15), 2))


def read(text: str, by: Voice) -> np.ndarray:
    """Return the spoken text: mono, float32, 16 kHz."""
    if by.program == "pico":
        speed = round(100 * by.tempo / by.pitch)
        return resampled(output([sys.executable, "-c", PICO, by.name, str(speed), text]), PICO_RATE * by.pitch)
    if by.program == "hibari":
        return soxr.resample(
            hibari()(text, by.tempo / by.pitch, zlib.crc32(text.encode())), HIBARI_RATE * by.pitch, SAMPLE_RATE
        )
    if by.program == "flite":
        stretch = ["--setf", f"duration_stretch={by.pitch / by.tempo:.3f}"]
        wav = output(["flite", "-voice", by.name, *stretch, "-t", text, "-o", "/dev/stdout"])
    else:
        speed = round(ESPEAK_WORDS_A_MINUTE * by.tempo / by.pitch)
        wav = output(["espeak-ng", "-v", by.name, "-s", str(speed), "--stdout", text])
    rate = int.from_bytes(wav[24:28], "little")
    return resampled(wav[44:], rate * by.pitch)


@cache
def hibari() -> Any:
    from hibari import Hibari

    return Hibari()


def output(command: list[str]) -> bytes:
    return subprocess.run(command, check=True, capture_output=True).stdout


def resampled(pcm: bytes, rate: float) -> np.ndarray:
    samples = np.frombuffer(pcm[: len(pcm) // 2 * 2], "<i2").astype(np.float32) / 2**15
    return soxr.resample(samples, rate, SAMPLE_RATE).astype(np.float32)


if __name__ == "__main__":
    main()
