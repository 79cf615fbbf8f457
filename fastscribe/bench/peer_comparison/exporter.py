"""ONNX files of a .nemo file for onnx-asr or sherpa-onnx, run by its path under the peer's own Python: standard library,
NeMo, onnx and onnxruntime, nothing else.

The first line on stdin is a JSON object: peer, model (the .nemo file), folder (new, for the files) and int8_weights ("signed"
or "unsigned"). The answer, when all files are there, is {"files"}. NeMo's own export makes the graphs in float32; onnxruntime's
dynamic quantisation makes the int8 ones beside them: of the MatMul nodes, with weights of the kind that this machine multiplies
fastest without error. Whatever else prints goes to stderr.

Each peer has names and metadata of its own:
onnx-asr     encoder-model.onnx and decoder_joint-model.onnx, or model.onnx (CTC); int8: .int8.onnx; vocab.txt, config.json
sherpa-onnx  encoder.onnx, decoder.onnx and joiner.onnx, or model.onnx (CTC), with metadata; int8: .int8.onnx; tokens.txt,
             and config.json for the comparison itself
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BLANK = "<blk>"
SUBSAMPLING = 8  # of FastConformer; only times of tokens hang on it

if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder: its modules are not top-level packages


def serve() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    folder = Path(settings["folder"])
    export(settings["peer"], settings["model"], folder, settings["int8_weights"])
    files = sorted(path.name for path in folder.iterdir())
    print(json.dumps({"files": files}), file=replies, flush=True)
    sys.stdin.read()


def export(peer: str, path: str, folder: Path, int8_weights: str) -> None:
    import torch
    from nemo.collections.asr.models import ASRModel

    model = ASRModel.restore_from(path, map_location=torch.device("cpu")).eval()
    kind = kind_of(model)
    described = {"model_type": f"nemo-conformer-{kind}", "features_size": int(model.cfg.preprocessor.features)}
    described["subsampling_factor"] = SUBSAMPLING
    with torch.no_grad():
        GRAPHS[peer](model, kind, folder)
    for graph in sorted(folder.glob("*.onnx")):
        add_int8(graph, int8_weights)
    labels = [*(model.decoder if kind == "ctc" else model.joint).vocabulary, BLANK]
    lines = "".join(f"{label} {number}\n" for number, label in enumerate(labels))
    (folder / VOCABULARIES[peer]).write_text(lines, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")


def kind_of(model: Any) -> str:
    """ctc, rnnt or tdt; of a hybrid model its transducer."""
    if getattr(model, "joint", None) is None:
        return "ctc"
    return "tdt" if model.cfg.decoding.get("durations") else "rnnt"


def export_for_onnx_asr(model: Any, kind: str, folder: Path) -> None:
    model.export(str(folder / "model.onnx"), verbose=False)
    for path in sorted(folder.glob("*.onnx")):
        finish(path, {})


def export_for_sherpa_onnx(model: Any, kind: str, folder: Path) -> None:
    preprocessor = model.cfg.preprocessor
    metadata = {"normalize_type": preprocessor.normalize, "subsampling_factor": SUBSAMPLING, "model_author": "NeMo"}
    metadata |= {"feat_dim": int(preprocessor.features), "version": 1, "comment": ""}
    metadata["url"] = (
        f"nemo-conformer-{kind}"  # with "tdt" in it, sherpa-onnx takes the joiner's last outputs for durations
    )
    if kind == "ctc":
        model.export(str(folder / "model.onnx"), verbose=False)
        finish(
            folder / "model.onnx", metadata | {"model_type": "EncDecCTCModelBPE", "vocab_size": _size(model.decoder)}
        )
        return
    predictor = model.decoder
    metadata |= {"model_type": "EncDecRNNTBPEModel", "vocab_size": predictor.vocab_size}
    metadata |= {"pred_rnn_layers": predictor.pred_rnn_layers, "pred_hidden": predictor.pred_hidden}
    for name, part in (("encoder", model.encoder), ("decoder", predictor), ("joiner", model.joint)):
        part.export(str(folder / f"{name}.onnx"), verbose=False)
        finish(folder / f"{name}.onnx", metadata if name == "encoder" else {})


def _size(decoder: Any) -> int:
    return len(decoder.vocabulary)


def finish(path: Path, metadata: Mapping[str, Any]) -> None:
    """Add metadata. Weights that NeMo wrote into a file each, of a large graph, are put into one."""
    import onnx

    scattered = _weight_files(onnx.load(str(path), load_external_data=False), path.parent)
    model = onnx.load(str(path))
    _describe(model, metadata)
    large = {"save_as_external_data": True, "location": f"{path.name}.data"} if scattered else {}
    onnx.save(model, str(path), **large)
    del model
    for one in scattered:
        one.unlink()


def add_int8(path: Path, weights: str) -> None:
    """Write a graph's int8 form beside it, with its metadata."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    small, kind = path.with_suffix(".int8.onnx"), {"signed": QuantType.QInt8, "unsigned": QuantType.QUInt8}[weights]
    quantize_dynamic(str(path), str(small), op_types_to_quantize=["MatMul"], weight_type=kind)
    whole, quantised = onnx.load(str(path), load_external_data=False), onnx.load(str(small))
    _describe(quantised, {one.key: one.value for one in whole.metadata_props})
    onnx.save(quantised, str(small))


def _weight_files(model: Any, folder: Path) -> set[Path]:
    """Files beside the graph that have its weights and constants."""
    constants = [attribute.t for node in model.graph.node for attribute in node.attribute if attribute.HasField("t")]
    external = (one.external_data for one in (*model.graph.initializer, *constants))
    return {folder / pair.value for pairs in external for pair in pairs if pair.key == "location"}


def _describe(model: Any, metadata: Mapping[str, Any]) -> None:
    del model.metadata_props[:]
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=str(value))


VOCABULARIES = {"onnx-asr": "vocab.txt", "sherpa-onnx": "tokens.txt"}
GRAPHS: dict[str, Callable[[Any, str, Path], None]] = {
    "onnx-asr": export_for_onnx_asr,
    "sherpa-onnx": export_for_sherpa_onnx,
}

if __name__ == "__main__":
    serve()
