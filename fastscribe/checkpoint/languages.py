"""The languages of published models by name, for checkpoints that do not state them, as most do not."""

from __future__ import annotations

import re
from pathlib import Path

from fastscribe.languages import language_tag

_ENGLISH = frozenset(
    (
        *("parakeet-tdt-0.6b-v2", "parakeet-tdt-1.1b", "parakeet-tdt_ctc-110m", "parakeet-tdt_ctc-1.1b"),
        *("parakeet-rnnt-0.6b", "parakeet-rnnt-1.1b", "parakeet-unified-en-0.6b"),
        *("parakeet-ctc-0.6b", "parakeet-ctc-1.1b", "parakeet_realtime_eou_120m-v1"),
        "nemotron-speech-streaming-en-0.6b",
        *("granite-speech-5.0-470m-turboctc", "granite-speech-5.0-470m-turboctc-nc"),
    )
)
_PACKAGED = Path(__file__).absolute().parents[1] / "default_model"  # location.PACKAGED, which imports readers of models
# The model card of parakeet-tdt-0.6b-v3.
_EUROPEAN = "bg hr cs da nl en et fi fr de el hu it lv lt mt pl pt ro ru sk sl es sv uk"
_NEMO_NAME = re.compile(r"stt_((?:[a-z]{2}){1,3}(?:_[a-z]{2})*)_.+")  # stt_de_..., stt_enes_..., stt_kk_ru_...
_HUB_FOLDER = re.compile(r"models--.+--(.+)")  # in the cache of huggingface_hub


def languages_by_name(path: Path) -> tuple[str, ...]:
    """Return the tags of the languages of a published model; empty if the path has no such name in it.

    Names are those of a .nemo file, of a model's folder, and of a repository in the hub's cache.
    """
    if path.absolute() == _PACKAGED:
        return ("en",)
    hub_names = [match[1] for part in path.parts if (match := _HUB_FOLDER.fullmatch(part))]
    folder = [path.parent.name] if path.suffix == ".nemo" else []
    for name in (path.name.removesuffix(".nemo"), *folder, *hub_names):
        if name in _ENGLISH:
            return ("en",)
        if name == "parakeet-tdt-0.6b-v3":
            return tuple(sorted(_EUROPEAN.split()))
        if match := _NEMO_NAME.fullmatch(name):
            codes = re.findall("[a-z]{2}", match[1])
            return tuple(code for code in codes if language_tag(code))
    return ()
