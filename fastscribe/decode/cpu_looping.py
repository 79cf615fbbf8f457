"""Greedy transducer decoding of a batch on a CPU: label-looping in which no product has a row too many.

As in label_looping.py, a step runs the predictor once for each row's last label and looks at a window of encoder frames. Here
rows that have ended leave the batch, a row that has found no label in its window keeps its prediction, and one loop
(looping_kernels.py) does what torch's operators would do in forty calls between two products. The result must equal that of
greedy.py.

Shapes: as in looping_kernels.py; L predictor layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fastscribe._system.float_bits import as_numpy
from fastscribe.decode.decoder import max_labels
from fastscribe.decode.label_looping import STATUS_ENDLESS, LabelLooping, Network
from fastscribe.decode.looping_kernels import ENDED, IS_ENDLESS, SPOKE, kernels
from fastscribe.types import AnyArray, Frames, Int64Array

if TYPE_CHECKING:
    from fastscribe.context.boosting_loops import HostChoice

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_WINDOW = 4  # frames of a row and step


class CpuLooping(LabelLooping):
    """The Decoder (decoder.py) for wide models on a CPU."""

    def __init__(self, network: Network, window: int = _WINDOW) -> None:
        super().__init__(network)
        self._window = window
        self._dtype = network.predictor.first_gates_VG.dtype
        self._table_VG = as_numpy(network.predictor.first_gates_VG.contiguous())
        self._variant = _DTYPES[self._dtype], network.joint.activation_name
        self._loops = kernels(*self._variant)
        self._durations_D = np.array(network.durations, np.int64)

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Decode a batch. Return what label_looping.pack() returns."""
        network, (batch, num_frames, _) = self.network, frames.frames_BTD.shape
        lengths_B: Int64Array = frames.lengths_B.numpy().astype(np.int64)
        encoded_BTJ = as_numpy(network.joint.encoder(frames.frames_BTD).contiguous())
        found = _Labels(batch, num_frames + 1)
        position_B, repeats_B = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
        max_labels_B, status_B = max_labels(frames.lengths_B).numpy().astype(np.int64), np.zeros(batch, np.int64)
        predictions = _Predictions(self, batch)
        choice = self._host_choice(frames)
        limits = (self._window, network.blank_id, self._durations_D, network.max_symbols)
        rows_A = np.flatnonzero(lengths_B > 0)
        while len(rows_A):
            inputs_NJ = torch.empty(len(rows_A) * self._window, network.joint_width, dtype=self._dtype)
            places = (rows_A, position_B, lengths_B, self._window, as_numpy(inputs_NJ))
            num_inputs = self._loops["joint_inputs"](encoded_BTJ, predictions.predicted_BJ, *places)
            logits_NX = as_numpy(network.joint.output(inputs_NJ[:num_inputs]).contiguous())
            status_A, input_A = np.empty(len(rows_A), np.int64), np.empty(len(rows_A), np.int64)
            rows = (position_B, lengths_B, max_labels_B, found.count_B, repeats_B)
            self._loops["choose"](logits_NX, rows_A, *limits, *rows, *found.columns, status_A, input_A)
            if choice is not None:
                choice(logits_NX, rows_A, input_A, found.count_B, found.ids_BS, found.logprobs_BS)
            status_B[rows_A] = status_A
            predictions.update(rows_A[status_A == SPOKE], found.last_labels())
            found.make_room()
            rows_A = rows_A[status_A < ENDED]
        return found.packed(status_B == IS_ENDLESS, num_frames + 1, has_durations=bool(network.durations))

    def _host_choice(self, frames: Frames) -> HostChoice | None:
        """Return what chooses labels instead of the model; None: nothing does."""
        if frames.boost is None and frames.mask is None:
            return None
        from fastscribe.context.boosting_loops import HostChoice

        return HostChoice(frames, self.network.blank_id, *self._variant)


class _Labels:
    """The labels of a batch, in slots that grow."""

    def __init__(self, batch: int, slots: int) -> None:
        self.count_B = np.zeros(batch, np.int64)
        self.ids_BS, self.picks_BS, self.times_BS = (np.zeros((batch, slots), np.int32) for _ in range(3))
        self.logprobs_BS = np.zeros((batch, slots), np.float32)

    @property
    def columns(self) -> tuple[AnyArray, ...]:
        return self.ids_BS, self.picks_BS, self.times_BS, self.logprobs_BS

    def last_labels(self) -> AnyArray:
        """Return the last label of each row [B]; 0 without one."""
        last: AnyArray = self.ids_BS[np.arange(len(self.count_B)), np.maximum(self.count_B - 1, 0)]
        return last

    def make_room(self) -> None:
        """Have a free slot in every row."""
        if self.count_B.max(initial=0) == self.ids_BS.shape[1]:
            self.ids_BS, self.picks_BS, self.times_BS, self.logprobs_BS = (
                np.concatenate([column, np.zeros_like(column)], axis=1) for column in self.columns
            )

    def packed(self, is_endless_B: AnyArray, row_slots: int, *, has_durations: bool) -> torch.Tensor:
        """Return what label_looping.pack() returns; a row's frames begin at a multiple of `row_slots`."""
        times_BS = self.times_BS + np.arange(len(self.count_B), dtype=np.int32)[:, None] * np.int32(row_slots)
        columns = [self.ids_BS, *([self.picks_BS] if has_durations else []), times_BS, self.logprobs_BS.view(np.int32)]
        flat = [self.count_B, is_endless_B * STATUS_ENDLESS, *(column.ravel() for column in columns)]
        return torch.from_numpy(np.concatenate(flat).astype(np.int32))


class _Predictions:
    """The predictor's state of each row, and its output projected by the joint network."""

    def __init__(self, decoder: CpuLooping, batch: int) -> None:
        self._decoder, self._predictor = decoder, decoder.network.predictor
        self._width = decoder._table_VG.shape[1] // 4
        self._hidden_LBH = torch.zeros(len(self._predictor.recurrent), batch, self._width, dtype=decoder._dtype)
        self._cells_LBH = np.zeros(self._hidden_LBH.shape, np.float32)
        self._predicted_BJ = torch.zeros(batch, decoder.network.joint_width, dtype=decoder._dtype)
        self.predicted_BJ = as_numpy(self._predicted_BJ)
        self.update(np.arange(batch), np.full(batch, decoder.network.blank_id))

    def update(self, rows_F: Int64Array, label_B: AnyArray) -> None:
        """Run the predictor for some rows, on the label of each."""
        if not len(rows_F):
            return
        places_F = torch.from_numpy(rows_F)
        others_XG, index_F = self._decoder._table_VG, label_B[rows_F].astype(np.int64)
        below_FH = torch.empty(0)
        for layer, recurrent in enumerate(self._predictor.recurrent):
            if layer:
                others_XG, index_F = _product(self._predictor.upward[layer - 1], below_FH), np.arange(len(rows_F))
            hidden_BH = self._hidden_LBH[layer]
            gates_FG = _product(recurrent, hidden_BH[places_F])
            below_FH = torch.empty(len(rows_F), self._width, dtype=hidden_BH.dtype)
            memory = (self._cells_LBH[layer], as_numpy(hidden_BH), as_numpy(below_FH))
            self._decoder._loops["lstm_cell"](gates_FG, others_XG, index_F, rows_F, *memory)
        self._predicted_BJ[places_F] = self._decoder.network.joint.predictor(below_FH)


def _product(linear: nn.Module, x_FH: torch.Tensor) -> Any:
    return as_numpy(linear(x_FH).contiguous())
