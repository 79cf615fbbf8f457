"""The heads of a NeMo checkpoint, from its class, or from its weight names if the class is not NeMo's.

Sections of the YAML do not show the heads, because NeMo copies unused sections between configs: a model without a CTC head
may have an `aux_ctc` section.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastscribe.checkpoint.value import Section
from fastscribe.errors import UnsupportedCheckpoint


@dataclass(frozen=True)
class Heads:
    """Which of the three heads a model has. Hybrids have a transducer and a CTC head.

    A language prompt is no head: it comes before the heads.
    """

    transducer: bool = False
    ctc: bool = False
    aed: bool = False
    language_prompt: bool = False


CLASSES = {
    "EncDecCTCModel": Heads(ctc=True),
    "EncDecCTCModelBPE": Heads(ctc=True),
    "EncDecRNNTModel": Heads(transducer=True),
    "EncDecRNNTBPEModel": Heads(transducer=True),
    "EncDecRNNTBPEModelWithPrompt": Heads(transducer=True, language_prompt=True),
    "EncDecHybridRNNTCTCModel": Heads(transducer=True, ctc=True),
    "EncDecHybridRNNTCTCBPEModel": Heads(transducer=True, ctc=True),
    "EncDecMultiTaskModel": Heads(aed=True),
}
# NeMo's classes whose output depends on more than the audio, or that have other layers.
_UNSUPPORTED_CLASSES = {
    "EncDecHybridRNNTCTCBPEModelWithPrompt": "models without language prompts, EncDecRNNTBPEModelWithPrompt",
    "EncDecTransfModelBPE": "EncDecMultiTaskModel",
}
# Prefixes of weight names that identify a head. A transducer's predictor is called `decoder`, as a CTC model's head is.
_TRANSDUCER, _AUX_CTC, _CTC, _AED = "joint.", "ctc_decoder.", "decoder.decoder_layers.", "transf_decoder."
_KNOWN_MODULES = {"preprocessor", "encoder", "decoder", "joint", "ctc_decoder"} | {
    "transf_encoder",
    "encoder_decoder_proj",
    "transf_decoder",
    "log_softmax",
}


def heads_of(config: Section, weight_names: Callable[[], Iterable[str]]) -> Heads:
    """Return the heads of a model.

    Args:
        config: the whole model_config.yaml; its `target` is the dotted path of the class.
        weight_names: reads NeMo's names of the weights. Called only for classes that are not NeMo's.

    Returns:
        The heads.

    Raises:
        UnsupportedCheckpoint: the class, or a module that the weights belong to, is not supported.
    """
    target = config.get("target", None)
    name = target.rpartition(".")[2] if isinstance(target, str) else ""
    if name in CLASSES:
        return CLASSES[name]
    from fastscribe.side_models import UNSUPPORTED_CLASSES

    if supported := (_UNSUPPORTED_CLASSES | UNSUPPORTED_CLASSES).get(name):
        raise UnsupportedCheckpoint(config.where, "target", target, supported)
    return _by_weights(tuple(weight_names()), config.where, target)


def _by_weights(names: tuple[str, ...], where: object, target: object) -> Heads:
    """Return the heads of a custom class, which is usually a subclass of NeMo's."""
    unknown = next((name for name in names if name.partition(".")[0] not in _KNOWN_MODULES), None)
    heads = Heads(
        transducer=any(name.startswith(_TRANSDUCER) for name in names),
        ctc=any(name.startswith((_AUX_CTC, _CTC)) for name in names),
        aed=any(name.startswith(_AED) for name in names),
    )
    if unknown is not None:
        raise UnsupportedCheckpoint(where, "target", target, f"{', '.join(CLASSES)}; this class has {unknown[:80]} too")
    if heads == Heads() or (heads.aed and (heads.transducer or heads.ctc)):
        raise UnsupportedCheckpoint(where, "target", target, ", ".join(CLASSES))
    return heads
