"""What scores an encoder's frames by label. CTC has one linear layer from frames to labels and blank (Graves et al. 2006). A
transducer has a predictor (an LSTM over labels) and a joint network (Graves 2012; TDT: Xu et al. 2023).

The predictor runs single steps, because greedy decoding takes one at a time, and a CUDA graph needs identical steps. Training
unrolls `nn.LSTM` with the same parameters.

Shapes: B batch, H predictor width, L predictor layers, G gates (4H: input, forget, cell, output), J joint width, V labels with
blank, N durations.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.config import JointConfig, PredictorConfig
from fastscribe.families.blocks.forms import Container, linear_from, pack_linears_

MAX_LOGITS = 1 << 27  # computed at once; those of a large batch and vocabulary would take more memory than the encoder
_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


class CtcHead(nn.Module):
    """A linear layer from [B, T, D] to logits [B, T, V], blank last."""

    def __init__(self, d_model: int, num_tokens: int) -> None:
        super().__init__()
        self.output = nn.Linear(d_model, num_tokens)

    def forward(self, frames_BTD: torch.Tensor) -> torch.Tensor:
        logits_BTV: torch.Tensor = self.output(frames_BTD)
        return logits_BTV


def split_for_logits(frames_BTD: torch.Tensor, num_tokens: int) -> tuple[torch.Tensor, ...]:
    """Split the frames of all rows [B*T, D] into parts of at most MAX_LOGITS logits."""
    parts: tuple[torch.Tensor, ...] = frames_BTD.flatten(0, 1).split(max(1, MAX_LOGITS // num_tokens))
    return parts


class Predictor(nn.Module):
    """An LSTM over labels. The start symbol is the blank's embedding row, whatever the checkpoint holds there."""

    def __init__(self, config: PredictorConfig, num_tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, config.hidden)
        self.lstm = nn.LSTM(config.hidden, config.hidden, config.num_layers)

    def initial_state(self, batch_size: int) -> torch.Tensor:
        weight = self.embedding.weight
        return weight.new_zeros(2, self.lstm.num_layers, batch_size, self.lstm.hidden_size)

    def step(self, labels_B: torch.Tensor, state_2LBH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one step.

        Args:
            labels_B: last label of each row.
            state_2LBH: h and c.

        Returns:
            Output [B, H] and the new state.
        """
        x_BH = self.embedding(labels_B)
        new_state_2LBH = torch.empty_like(state_2LBH)
        for layer in range(self.lstm.num_layers):
            h_BH, c_BH = self._cell(x_BH, state_2LBH[0, layer], state_2LBH[1, layer], layer)
            new_state_2LBH[0, layer], new_state_2LBH[1, layer] = h_BH, c_BH
            x_BH = h_BH
        return x_BH, new_state_2LBH

    def _cell(
        self, x_BH: torch.Tensor, h_BH: torch.Tensor, c_BH: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weight_ih, weight_hh, bias_ih, bias_hh = self.lstm.all_weights[layer]
        gates = torch.addmm(bias_ih, x_BH, weight_ih.t()) + torch.addmm(bias_hh, h_BH, weight_hh.t())
        in_BH, forget_BH, cell_BH, out_BH = gates.chunk(4, dim=1)
        c_BH = torch.sigmoid(forget_BH) * c_BH + torch.sigmoid(in_BH) * torch.tanh(cell_BH)
        return torch.sigmoid(out_BH) * torch.tanh(c_BH), c_BH


class Joint(nn.Module):
    """Encoder and predictor projected to one width, added, activated, projected to V labels (blank last) + N durations."""

    def __init__(self, config: JointConfig, d_model: int, predictor_hidden: int, num_outputs: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(d_model, config.hidden)
        self.predictor = nn.Linear(predictor_hidden, config.hidden)
        self.output = nn.Linear(config.hidden, num_outputs)
        self.activation_name = config.activation
        self.activation = _ACTIVATIONS[config.activation]

    def forward(self, projected_encoder: torch.Tensor, projected_predictor: torch.Tensor) -> torch.Tensor:
        """Compute logits [..., V+N] of [..., J], already projected so that callers can project once."""
        logits: torch.Tensor = self.output(self.activation(projected_encoder + projected_predictor))
        return logits


class Transducer(Container):
    """Predictor and joint network, with blank id, TDT durations (empty for RNN-T) and max_symbols."""

    def __init__(
        self,
        predictor: PredictorConfig,
        joint: JointConfig,
        durations: tuple[int, ...],
        d_model: int,
        blank_id: int,
    ) -> None:
        super().__init__()
        self.predictor = Predictor(predictor, blank_id + 1)
        self.joint = Joint(joint, d_model, predictor.hidden, blank_id + 1 + len(durations))
        self.blank_id = blank_id
        self.durations = durations
        self.max_symbols = joint.max_symbols


class FastPredictor(nn.Module):
    """The predictor in its inference form; it equals `Predictor.step` up to rounding.

    The first layer's input gates are a precomputed table with a row per label, the two biases of a layer are added, and
    matrices are packed for the CPU. A step is one lookup, one product per recurrent matrix and per layer above the first, and
    on a GPU one fused cell kernel per layer.
    """

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
