"""The predictor in its inference form; it equals `Predictor.step` up to rounding.

The first layer's input gates are a precomputed table with a row per label, the two biases of a layer are added, and
matrices are packed for the CPU. A step is one lookup, one product per recurrent matrix and per layer above the first, and
on a GPU one fused cell kernel per layer.

Shapes: B batch, H predictor width, L predictor layers, G gates (4H: input, forget, cell, output), V labels with blank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.blocks.forms import linear_from
from fastscribe.families.blocks.packed import pack_linears_
from fastscribe.families.blocks.transducer import Predictor


class FastPredictor(nn.Module):
    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        weights = predictor.lstm.all_weights
        weight_ih, _, bias_ih, bias_hh = weights[0]
        self.first_gates_VG = F.linear(predictor.embedding.weight, weight_ih, bias_ih + bias_hh)
        self.recurrent = nn.ModuleList(linear_from(weight_hh.detach()) for _, weight_hh, _, _ in weights)
        self.upward = nn.ModuleList(linear_from(w.detach(), (b_ih + b_hh).detach()) for w, _, b_ih, b_hh in weights[1:])
        if self.first_gates_VG.device.type == "cpu":
            pack_linears_(self, self.first_gates_VG.dtype)

    def step(self, labels_B: torch.Tensor, state_2LBH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one step. Arguments and results are those of `Predictor.step`."""
        hidden_LBH, cells_LBH = state_2LBH
        gates_BG = F.embedding(labels_B, self.first_gates_VG)
        outputs: list[torch.Tensor] = []
        cells: list[torch.Tensor] = []
        for layer, recurrent in enumerate(self.recurrent):
            if layer:
                gates_BG = self.upward[layer - 1](outputs[-1])
            output_BH, cell_BH = _cell(gates_BG, recurrent(hidden_LBH[layer]), cells_LBH[layer])
            outputs.append(output_BH)
            cells.append(cell_BH)
        return outputs[-1], torch.stack(outputs + cells).view_as(state_2LBH)


def _cell(
    gates_BG: torch.Tensor, recurrent_BG: torch.Tensor, cell_BH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and new cell of an LSTM cell; may overwrite the two summands of the gates."""
    if gates_BG.is_cuda and hasattr(torch.ops.aten, "_thnn_fused_lstm_cell"):  # a single kernel, which CPUs lack
        output_BH, new_cell_BH, _ = torch.ops.aten._thnn_fused_lstm_cell(gates_BG, recurrent_BG, cell_BH)
        return output_BH, new_cell_BH
    in_BH, forget_BH, candidate_BH, out_BH = recurrent_BG.add_(gates_BG).chunk(4, dim=1)
    new_cell_BH = (forget_BH.sigmoid_() * cell_BH).addcmul_(in_BH.sigmoid_(), candidate_BH.tanh_())
    return out_BH.sigmoid_() * new_cell_BH.tanh(), new_cell_BH
