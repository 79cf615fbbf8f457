"""fastscribe as the model of NeMo Curator's ASR stage.

    from nemo_curator.stages.audio.inference.asr.stage import ASRStage

    stage = ASRStage(
        adapter_target="curator_stage.FastscribeASR",      # this file, on PYTHONPATH of all workers
        model_id="nvidia/parakeet-tdt-0.6b-v3",            # what `fastscribe transcribe --model` takes
        extras_key="fastscribe",                           # words, segments and gaps, in one column
        batch_size=512,                                    # fastscribe sorts these by length into batches of its own
    )

It needs nemo-curator and fastscribe. The stage reads the audio and gives samples; fastscribe splits long recordings at pauses,
so nothing has to be cut before. A recording that fails is marked in `_skipme`, and the others go on.
"""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass, field
from typing import Any

from nemo_curator.models.asr.base import ASRResult

from fastscribe import Failure, Options, Transcriber, Transcript, render
from fastscribe.checkpoint.location import locate


@dataclass
class FastscribeASR:
    """An ASRAdapter of NeMo Curator 1.4.

    Args:
        model_id: A path, or the name of a model on the Hugging Face hub; "default" is the packaged model.
        dtype: "auto", "fp32", "bf16", "int8" or "fp8".
        options: Values of fastscribe.Options by name, such as {"beam": 4, "language": "de"}. The stage's language of an item is
            not used: one model and one language serve all items.
    """

    model_id: str = "default"
    dtype: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    _transcriber: Transcriber | None = field(default=None, init=False, repr=False)

    def download_weights_on_node(self) -> None:
        """Download the model into the cache of this node. The stage calls this once a node."""
        locate(self.model_id, print, show_progress=False)

    def load_model(self, *, num_gpus: int) -> None:
        """Load the model on the GPU that the stage has reserved, or on the CPU.

        Raises:
            ValueError: The stage asks for several GPUs, or the model or an option is unusable.
        """
        if num_gpus not in (0, 1):
            raise ValueError(f"num_gpus {num_gpus}: a stage's worker uses one GPU or none")
        if self._transcriber is None:
            device = "cuda" if num_gpus else "cpu"
            self._transcriber = Transcriber.load(self.model_id, device, self.dtype, Options(**self.options))

    def unload_model(self) -> None:
        """Free the model's memory."""
        self._transcriber = None
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def transcribe_batch(self, items: list[dict[str, Any]]) -> list[ASRResult]:
        """Transcribe samples.

        Args:
            items: Each has `waveform`, mono float32 samples in [-1, 1], and `sample_rate` in Hz.

        Returns:
            A result for each item, in order.

        Raises:
            RuntimeError: The model is not loaded.
        """
        if self._transcriber is None:
            raise RuntimeError("load_model() comes first")
        given = [index for index, item in enumerate(items) if len(item["waveform"])]
        found = [ASRResult(text="", skipped=True, skip_reason="empty_audio") for _ in items]
        audio = [(items[index]["waveform"], int(items[index]["sample_rate"])) for index in given]
        for result in self._transcriber.transcribe(audio):
            found[given[result.index]] = _result(result)
        return found


def _result(result: Transcript | Failure) -> ASRResult:
    """Return what the stage writes. Its extras are those of a row of transcripts.jsonl: plain values, times in seconds."""
    row = json.loads(render(result, "jsonl"))
    if isinstance(result, Failure):
        return ASRResult(text="", skipped=True, skip_reason=f"{result.stage}_error", extras={"error": row["error"]})
    return ASRResult(text=result.text, extras={name: row[name] for name in ("words", "segments", "gaps")})
