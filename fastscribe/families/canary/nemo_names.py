"""Names of the weights of NeMo's EncDecMultiTaskModel (Canary) beside the encoder's."""

from __future__ import annotations

import re

_ATTENTION = (
    (r"\.query_net\.", ".query."),
    (r"\.key_net\.", ".key."),
    (r"\.value_net\.", ".value."),
    (r"\.out_projection\.", ".out."),
    (r"\.dense_in\.", ".inner."),
    (r"\.dense_out\.", ".outer."),
)
_DECODER, _BRIDGE = r"^transf_decoder\._decoder\.layers\.(\d+)\.", r"^transf_encoder\.layers\.(\d+)\."
NAMES = (
    (r"^encoder_decoder_proj\.", "aed.projection."),
    (r"^log_softmax\.mlp\.layer0\.", "aed.head."),
    (r"^transf_decoder\._embedding\.token_embedding\.", "aed.embedding."),
    (r"^transf_decoder\._embedding\.position_embedding\.(pos_enc|weight)$", "aed.positions.weight"),
    (r"^transf_decoder\._embedding\.layer_norm\.", "aed.norm."),
    (r"^transf_decoder\._decoder\.final_layer_norm\.", "aed.final_norm."),
    (_DECODER + r"layer_norm_1\.", r"aed.layers.\1.norm_own."),
    (_DECODER + r"layer_norm_2\.", r"aed.layers.\1.norm_frames."),
    (_DECODER + r"layer_norm_3\.", r"aed.layers.\1.norm_feed_forward."),
    (_DECODER + r"first_sub_layer\.", r"aed.layers.\1.own."),
    (_DECODER + r"second_sub_layer\.", r"aed.layers.\1.frames."),
    (_DECODER + r"third_sub_layer\.", r"aed.layers.\1.feed_forward."),
    (r"^transf_encoder\.final_layer_norm\.", "aed.bridge_norm."),
    (_BRIDGE + r"layer_norm_1\.", r"aed.bridge.\1.norm_attention."),
    (_BRIDGE + r"layer_norm_2\.", r"aed.bridge.\1.norm_feed_forward."),
    (_BRIDGE + r"first_sub_layer\.", r"aed.bridge.\1.attention."),
    (_BRIDGE + r"second_sub_layer\.", r"aed.bridge.\1.feed_forward."),
    *_ATTENTION,
)
UNUSED = re.compile(r"^transf_decoder\._embedding\.token_type_embedding\.")
