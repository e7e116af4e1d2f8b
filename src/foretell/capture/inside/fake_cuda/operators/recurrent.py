"""Recurrent nets: cuDNN's, with the sizes the virtual GPU gives them (virtual/native/cudnn_rnn.c)."""

from __future__ import annotations

from typing import Any

from ..memory import address_of
from ..recording import foretell_module

RELU, TANH, LSTM, GRU = range(4)
_KINDS = {RELU: "rnn", TANH: "rnn", LSTM: "lstm", GRU: "gru"}


def add(device: Any) -> None:
    torch, memory = device.torch, device.memory
    aten = torch.ops.aten
    functions, kernels = device.functions, device.kernels
    rules = foretell_module("overhead.recurrent")
    dropout_states: dict[float, Any] = {}

    def dropout_state(dropout: float, train: bool) -> Any:
        if not train or dropout == 0:
            return torch.empty(0, dtype=torch.uint8, device="cuda")
        if dropout not in dropout_states:
            dropout_states[dropout] = aten._cudnn_init_dropout_state.default(
                dropout, train, 0, dtype=torch.uint8, device=torch.device("cuda", 0)
            )
        return dropout_states[dropout]

    def flat_buffer(params: Any) -> Any:
        """The one the parameters lie in, if they do."""
        if not params or device.memory.block_of(params[0]) is None:
            return None
        address = address_of(params[0])
        is_flat = all(address_of(each) == address for each in params)
        if not is_flat or len(params) < 2:
            return None
        storage = params[0].untyped_storage()
        made = torch.empty(0, dtype=params[0].dtype, device="cuda")
        return made.set_(storage, 0, (storage.nbytes() // params[0].dtype.itemsize,), (1,))

    def recurrent(
        mode: int, x: Any, hx: Any, cx: Any, params: Any, has_biases: bool, layers: int, dropout: float, train: bool,
        is_bidirectional: bool, batch_first: bool, batch_sizes: Any = (),
    ) -> Any:  # fmt: skip
        width = hx.size(2)
        projection = 0
        if mode == LSTM and cx is not None and cx.size(2) != hx.size(2):
            width, projection = cx.size(2), hx.size(2)
        with torch.no_grad():
            buffer = flat_buffer(params)
        result = aten._cudnn_rnn.default(
            x, list(params), 4 if has_biases else 2, buffer, hx, cx, mode, width, projection, layers, batch_first,
            dropout, train, is_bidirectional, list(batch_sizes), dropout_state(dropout, train),
        )  # fmt: skip
        return (result[0], result[1], result[2]) if mode == LSTM else (result[0], result[1])

    def lstm(x: Any, hidden: Any, *args: Any) -> Any:
        return recurrent(LSTM, x, hidden[0], hidden[1], *args)

    def lstm_packed(x: Any, batch_sizes: Any, hidden: Any, params: Any, has_biases: bool, *args: Any) -> Any:
        layers, dropout, train, is_bidirectional = args
        return recurrent(
            LSTM, x, hidden[0], hidden[1], params, has_biases, layers, dropout, train, is_bidirectional, False,
            batch_sizes.tolist(),
        )  # fmt: skip

    def one_state(mode: int) -> Any:
        return lambda x, hidden, *args: recurrent(mode, x, hidden, None, *args)

    def one_state_packed(mode: int) -> Any:
        def call(x: Any, batch_sizes: Any, hidden: Any, params: Any, has_biases: bool, *args: Any) -> Any:
            layers, dropout, train, is_bidirectional = args
            return recurrent(
                mode, x, hidden, None, params, has_biases, layers, dropout, train, is_bidirectional, False,
                batch_sizes.tolist(),
            )  # fmt: skip

        return call

    def flatten(
        weights: Any, stride: int, width: int, mode: int, hidden: int, projection: int, layers: int, batch_first: bool,
        is_bidirectional: bool,
    ) -> Any:  # fmt: skip
        """_cudnn_rnn_flatten_weight: the weights move into one buffer."""
        buffer = torch.zeros(sum(each.numel() for each in weights), dtype=weights[0].dtype, device="cuda")
        at = 0
        for each in weights:
            part = buffer[at : at + each.numel()].view(each.shape)
            part.copy_(each)
            each.set_(buffer.untyped_storage(), at, each.shape, part.stride())
            at += each.numel()
        return buffer

    def forward(
        x: Any, weights: Any, stride: int, buffer: Any, hx: Any, cx: Any, mode: int, hidden: int, projection: int,
        layers: int, batch_first: bool, dropout: float, train: bool, is_bidirectional: bool, batch_sizes: Any,
        state: Any,
    ) -> Any:  # fmt: skip
        device.library("cudnnCreate")
        device.library("cudnnRNNForward")
        directions = 2 if is_bidirectional else 1
        out_width = projection or hidden
        is_packed = len(batch_sizes) > 0
        if batch_first and not is_packed:
            x = x.transpose(0, 1)
        kept = x.contiguous(), hx.contiguous(), cx.contiguous() if cx is not None else None
        out = torch.empty((*x.shape[:-1], out_width * directions), dtype=x.dtype, device="cuda")
        hy = torch.empty((layers * directions, hx.size(1), out_width), dtype=x.dtype, device="cuda")
        cy_shape = (layers * directions, hx.size(1), hidden) if cx is not None else (0,)
        cy = torch.empty(cy_shape, dtype=x.dtype, device="cuda")
        if buffer is None:
            buffer = torch.zeros(sum(each.numel() for each in weights), dtype=x.dtype, device="cuda")
        samples = len(batch_sizes) * batch_sizes[0] if is_packed else x.size(0) * x.size(1)
        workspace = _workspace(samples, x, mode, hidden, directions)
        reserve = torch.empty(0, dtype=torch.uint8, device="cuda")
        if train:
            size = rules.recurrent_reserve(
                _KINDS[mode], samples=samples, hidden=hidden, projection=projection, layers=layers,
                directions=directions, has_dropout=dropout > 0, element_bytes=x.dtype.itemsize,
            )  # fmt: skip
            reserve = torch.empty(size, dtype=torch.uint8, device="cuda")
        del workspace, kept
        if batch_first and not is_packed:
            out = out.transpose(0, 1)
        return out, hy, cy, reserve, buffer

    def _workspace(samples: int, x: Any, mode: int, hidden: int, directions: int) -> Any:
        with device.rule("cuDNN workspace"):
            size = rules.recurrent_workspace(
                _KINDS[mode], samples=samples, hidden=hidden, directions=directions, element_bytes=x.dtype.itemsize
            )
            return memory.empty((size,), (1,), torch.uint8)

    def backward(
        x: Any, weights: Any, stride: int, buffer: Any, hx: Any, cx: Any, out: Any, grad_out: Any, grad_hy: Any,
        grad_cy: Any, mode: int, hidden: int, projection: int, layers: int, batch_first: bool, dropout: float,
        train: bool, is_bidirectional: bool, batch_sizes: Any, state: Any, reserve: Any, mask: Any,
    ) -> Any:  # fmt: skip
        directions = 2 if is_bidirectional else 1
        is_packed = len(batch_sizes) > 0
        grad_out = grad_out if grad_out is not None else torch.zeros_like(out)
        grad_hy = grad_hy if grad_hy is not None else torch.zeros_like(hx)
        if cx is not None and grad_cy is None:
            grad_cy = torch.zeros_like(cx)
        if batch_first and not is_packed:
            x, grad_out, out = x.transpose(0, 1), grad_out.transpose(0, 1), out.transpose(0, 1)
        samples = len(batch_sizes) * batch_sizes[0] if is_packed else x.size(0) * x.size(1)
        kept = [each.contiguous() for each in (x, grad_out, out, grad_hy, hx)]
        dx = torch.empty(x.shape, dtype=x.dtype, device="cuda")
        dhx = torch.empty(hx.shape, dtype=hx.dtype, device="cuda")
        dcx = torch.empty(cx.shape, dtype=cx.dtype, device="cuda") if cx is not None else None
        taken = _workspace(samples, x, mode, hidden, directions)
        del taken
        grads = []
        if mask[3]:
            dw = torch.zeros(buffer.shape, dtype=buffer.dtype, device="cuda")
            taken = _workspace(samples, x, mode, hidden, directions)
            del taken
            at = 0
            for each in weights:
                grads.append(dw[at : at + each.numel()].view(each.shape))
                at += each.numel()
        del kept
        if batch_first and not is_packed:
            dx = dx.transpose(0, 1)
        return dx, dhx, dcx, grads

    def init_dropout_state(dropout: float, train: bool, seed: int, **kwargs: Any) -> Any:
        size = rules.dropout_states(device.num_sms, int(device.card["threads_per_sm"]))
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    # Cells are kernels of PyTorch's own (RNN.cu); not every version has shape functions for them.

    def gru_cell(input_gates: Any, hidden_gates: Any, hx: Any, *biases: Any) -> Any:
        workspace = input_gates.new_empty((hx.size(0), 5 * hx.size(1)))
        return torch.empty_like(hx), workspace

    def gru_cell_backward(grad: Any, workspace: Any, has_bias: bool) -> Any:
        shape = (grad.size(0), 3 * grad.size(1))
        gates = [workspace.new_empty(shape) for _ in range(2)]
        grad_hx = torch.empty_like(grad)
        return *gates, grad_hx, *(gate.sum(0) if has_bias else None for gate in gates)

    def lstm_cell(input_gates: Any, hidden_gates: Any, cx: Any, *biases: Any) -> Any:
        workspace = torch.empty_like(input_gates)
        return torch.empty_like(cx), torch.empty_like(cx), workspace

    def lstm_cell_backward(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any, has_bias: bool) -> Any:
        gates, grad_cx = torch.empty_like(workspace), torch.empty_like(cx)
        return gates, grad_cx, gates.sum(0) if has_bias else None

    kernels[aten._thnn_fused_gru_cell.default] = gru_cell
    kernels[aten._thnn_fused_gru_cell_backward.default] = gru_cell_backward
    kernels[aten._thnn_fused_lstm_cell.default] = lstm_cell
    kernels[aten._thnn_fused_lstm_cell_backward_impl.default] = lstm_cell_backward
    functions[aten.lstm.input] = lstm
    functions[aten.lstm.data] = lstm_packed
    for name, mode in (("gru", GRU), ("rnn_tanh", TANH), ("rnn_relu", RELU)):
        functions[getattr(aten, name).input] = one_state(mode)
        functions[getattr(aten, name).data] = one_state_packed(mode)
    functions[aten._cudnn_rnn_flatten_weight.default] = flatten
    kernels[aten._cudnn_rnn.default] = forward
    kernels[aten._cudnn_rnn_backward.default] = backward
    kernels[aten._cudnn_init_dropout_state.default] = init_dropout_state
