"""Options and values as users of other tools type them: Whisper's, faster-whisper's, WhisperX's, NeMo's, parakeet-mlx's.

The rule: an option that means exactly the same here works, and a line on stderr gives its name here. Any other one is an error
that says what to use instead. docs/switching.md has the tables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache

from fastscribe.audio.formats import MAGIC, is_audio_name
from fastscribe.errors import UsageError
from fastscribe.rooms import ROOMS, enter, is_here

# Exactly the same, with a value.
RENAMED = {
    "--beam-size": "--beam",
    "--compute-dtype": "--dtype",
    "--compute-type": "--dtype",
    "--max-line-count": "--max-lines",
    "--output-format": "--format",
    "--vad-method": "--vad",
}
# Always on here. A value True or False after it is dropped too.
ALWAYS_ON = {
    "--batched": "recordings are always batched",
    "--word-timestamps": "words always have times in jsonl and json (Canary: --timestamps)",
}
_NO_SAMPLING = "these models take no prompt and do not sample: leave it out"
_NO_DETECTOR_SETTINGS = "recordings are always cut at pauses; --vad silero chooses another detector"
_CHUNKS = "--max-utterance-s SECONDS; cuts are at pauses, without overlap"
_INPUT = "inputs need no option: fastscribe transcribe PATH"
_INSTEAD = {
    _NO_SAMPLING: "best-of carry-initial-prompt compression-ratio-threshold condition-on-previous-text duration-reward "
    "initial-prompt length-penalty logprob-threshold no-repeat-ngram-size no-speech-threshold patience prompt "
    "prompt-reset-on-temperature repetition-penalty suppress-numerals suppress-tokens temperature "
    "temperature-increment-on-fallback",
    "these models time their own words: leave it out": "align-model interpolate-method no-align return-char-alignments",
    _NO_DETECTOR_SETTINGS: "vad-filter vad-max-speech-duration-s vad-min-silence-duration-ms vad-min-speech-duration-ms "
    "vad-offset vad-onset vad-threshold",
    _CHUNKS: "chunk-duration chunk-length chunk-size overlap-duration",
    _INPUT: "audio audio-dir audio-file dataset-manifest input input-file manifest",
    "folders are read with their subfolders: leave it out": "recursive",
    "-o FOLDER, or > FILE": "out output output-file output-filename",
    "files are named like their recordings: leave it out": "output-template",
    "-f FORMAT": "csv json jsonl srt tsv txt vtt",
    "--attention full, or local:L,R": "full-attention local-attention local-attention-context-size",
    "--beam N": "decoding decoding-strategy rnnt-decoding",
    "--channel N": "channel-selector",
    "--decoder NAME": "decoder-type",
    "--device cpu": "cpu",
    "--device cuda, or cuda:N": "cuda device-index gpu",
    "--devices all, or the numbers of the GPUs, such as 0,2": "gpus num-gpus",
    "--dtype bf16": "amp bf16",
    "--dtype bf16 (GPUs), or fp32": "fp16 half",
    "--dtype fp32": "fp32",
    "--language CODE": "lang source-lang",
    "--target-language CODE": "target-lang",
    "--target-language en, with a Canary model, which then translates": "translate",
    "transcribing needs no option; --target-language en translates, with a Canary model": "task",
    "--max-line-width COLUMNS": "max-duration max-words max-words-per-line silence-gap",
    "--model PATH or NAME": "model-directory model-id model-name model-path pretrained-name",
    "--verbose for the whole report, --quiet to print less": "debug print-progress",
    "--threads N for reading; OMP_NUM_THREADS=N in the environment for computing": "cpu-threads num-workers workers",
    "HF_HUB_CACHE=FOLDER in the environment": "cache-dir download-root model-dir",
    "HF_HUB_OFFLINE=1 in the environment": "local-files-only model-cache-only",
    "HF_TOKEN=TOKEN in the environment": "hf-token token use-auth-token",
    "the same command goes on with what is left; another folder starts over": "force overwrite-transcripts resume "
    "skip-existing",
    "`fastscribe evaluate` scores results": "calculate-wer use-cer",
    "report.json has it": "calculate-rtfx",
}


@cache
def instead() -> dict[str, str]:
    """Return what to use instead of options of other tools, by option. Rooms know what their own options stand for."""
    here = [room.name for room in ROOMS if "transcribe" in room.flags and is_here(room.name)]
    tables = [_INSTEAD, *(enter(room, "options", "transcribe").OPTIONS["transcribe"].instead for room in here)]
    return {f"--{name}": text for table in tables for text, names in table.items() for name in names.split()}


_NO_FP16 = "there is no fp16; bf16 is as fast on GPUs"
# By option: values that mean exactly the same, in lower case.
SAME_VALUES: dict[str, Mapping[str, str]] = {
    "--device": {"gpu": "cuda"} | {str(number): f"cuda:{number}" for number in range(16)},
    "--dtype": {"bfloat16": "bf16", "float": "fp32", "float32": "fp32", "default": "auto"},
    "--format": {"text": "txt", "webvtt": "vtt"},
}
_OTHER_CHIPS = "not supported; use auto, cpu or cuda"
# By option: values that mean something else, in lower case, and what to use.
OTHER_VALUES: dict[str, Mapping[str, str]] = {
    "--device": dict.fromkeys(("coreml", "metal", "mlx", "mps"), "Apple's GPUs are not supported; use cpu")
    | dict.fromkeys(("directml", "hip", "npu", "openvino", "rocm", "tpu", "vulkan", "xla", "xpu"), _OTHER_CHIPS),
    "--devices": dict.fromkeys(("auto", "-1", "cuda", "gpu"), "use all, or numbers of GPUs such as 0,2")
    | {"cpu": "use cpu:N, for N processes"},
    "--dtype": dict.fromkeys(("float16", "fp16", "half"), _NO_FP16)
    | dict.fromkeys(("int8_bfloat16", "int8_float16", "int8_float32"), "use int8 (CPUs) or fp8 (GPUs)"),
    "--format": {
        "all": "name the formats: -f jsonl,json,srt,vtt,txt,tsv",
        "csv": "use tsv",
        "lrc": "use srt, vtt or ass",
        "ssa": "use ass",
    },
    "--vad": {"pyannote": "use energy or silero"},
}
_NEMO_SETTING = re.compile(r"\+{0,2}(?:[a-z_]+\.)*([a-z_]+)=")
_IS_NEMO = re.compile(r"\+|[a-z_]+\.[a-z_.]+=")  # even if the setting is unknown
_BOOLEANS = ("true", "false")


def translate(
    arguments: Sequence[str],
    long_names: Mapping[str, str],
    flags: Mapping[str, str],
    own_values: Mapping[str, Container[str]],
    say: Callable[[str], None],
    is_transcribe: bool,
) -> list[str]:
    """Return a command's arguments with the names and values of this program.

    Args:
        arguments: What the user typed after the command.
        long_names: The long name of each option of the command, by each of its names.
        flags: The options that take no value; for each name the option that means the opposite, "" to leave it out.
        own_values: Values that an option has in this command, by its long name; they are never replaced.
        say: Called with a line for each name or value that was replaced.
        is_transcribe: Also recognise options that have another name, or none, in `fastscribe transcribe`.

    Raises:
        UsageError: Some options or values have no exact equivalent. The message says what to use for each of them.
    """
    translated: list[str] = []
    problems: list[str] = []
    left = list(arguments)
    while left:
        token = left.pop(0)
        if token == "--":
            problems += ["an argument is empty (a variable that is not set?)"] if "" in left else []
            return _checked([*translated, token, *left], problems)
        typed, equals, value = token.partition("=") if token.startswith("--") else (token, "", "")
        name = typed.replace("_", "-") if typed.startswith("--") else typed
        if is_transcribe and name not in long_names:
            if name in RENAMED:
                say(f"{typed} is {RENAMED[name]} here")
                name = RENAMED[name]
            elif name in ALWAYS_ON:
                say(f"{typed} is not needed: {ALWAYS_ON[name]}")
                if not equals and _has_boolean(equals, value, left):
                    left.pop(0)
                continue
            elif (problem := _problem(token, name, long_names)) is not None:
                problems.append(problem)
                continue
        if name in flags and _has_boolean(equals, value, left):
            said = value if equals else left.pop(0)
            meant = name if said.lower() == "true" else flags[name]
            say(f"{typed} {said} is {meant} here" if meant else f"{typed} {said} is the default: it is left out")
            translated += filter(None, [meant])
        elif not token:
            problems.append("an argument is empty (a variable that is not set?)")
        elif name not in long_names or name in flags or not (equals or left):
            translated.append(name + equals + value)
        else:
            option, value = long_names[name], value if equals else left.pop(0)
            translated += [
                name,
                value if value and value in own_values.get(option, ()) else _value(option, value, say, problems),
            ]
    return _checked(translated, problems)


def _has_boolean(equals: str, value: str, left: Sequence[str]) -> bool:
    """Return True if a flag is followed by True or False, as Whisper's are, that is no file."""
    word = value if equals else left[0] if left else ""
    return word.lower() in _BOOLEANS and (bool(equals) or not os.path.lexists(word))


def _checked(translated: list[str], problems: Sequence[str]) -> list[str]:
    if problems:
        raise UsageError("; ".join(problems))
    return translated


def _problem(token: str, name: str, long_names: Mapping[str, str]) -> str | None:
    """Return what to use instead of an option, or of a setting in NeMo's form; None: unknown, or an input with such a name."""
    if name.startswith("--") and name in instead():
        return f"{token.partition('=')[0]}: no such option: {_use(instead()[name])}"
    setting = _NEMO_SETTING.match(token)
    if setting is None or os.path.lexists(token) or MAGIC.search(token) or is_audio_name(token):
        return None
    option = "--" + setting[1].replace("_", "-")
    other = f"{option} VALUE" if option in long_names else RENAMED.get(option) or instead().get(option)
    if other is None and not _IS_NEMO.match(token):
        return None
    return f"{setting[0]}: a setting in NeMo's form: {_use(other or 'see fastscribe transcribe --help-all')}"


def _use(text: str) -> str:
    return f"use {text}" if text.startswith("-") else text


def _value(option: str, value: str, say: Callable[[str], None], problems: list[str]) -> str:
    """Return this program's name of a value; add a problem if it has none, or is empty."""
    if not value:
        problems.append(f"{option} is empty (a variable that is not set?)")
    same = SAME_VALUES.get(option, {}).get(value.lower())
    other = OTHER_VALUES.get(option, {}).get(value.lower())
    if same is not None:
        say(f"{option} {value} is {option} {same} here")
    if other is not None:
        problems.append(f"{option} {value}: {other}")
    return same or value
