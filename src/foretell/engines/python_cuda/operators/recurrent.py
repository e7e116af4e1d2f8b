"""Recurrent nets by cuDNN, with the virtual GPU's sizes (native/libraries/cudnn_rnn.c)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ....protocol.native_log import CUDNN_DATA_TYPES, DIRECTIONS, RECURRENT
from ....rules import recurrent as rules
from ....rules.convolution import Direction
from ..memory import address_of
from .registration import Tensor, aten, function, kernel, torch

if TYPE_CHECKING:
    from ..device import PythonCuda

RELU, TANH, LSTM, GRU = range(4)
_FUNCTIONS: dict[Direction, str] = {
    "forward": "cudnnRNNForward", "data": "cudnnRNNBackwardData_v8", "weights": "cudnnRNNBackwardWeights_v8",
}  # fmt: skip
_KINDS: dict[int, Literal["rnn", "lstm", "gru"]] = {RELU: "rnn", TANH: "rnn", LSTM: "lstm", GRU: "gru"}


# ---- nets: one cuDNN call each ---------------------------------------------------------------------------------------


@function("lstm.input")
def lstm(device: PythonCuda, x: Tensor, hidden: Sequence[Tensor], *args: Any) -> Any:
    return _net(device, LSTM, x, hidden[0], hidden[1], *args)


@function("lstm.data")
def packed_lstm(device: PythonCuda, x: Tensor, batch_sizes: Tensor, hidden: Sequence[Tensor], *args: Any) -> Any:
    return _packed_net(device, LSTM, x, batch_sizes, hidden[0], hidden[1], *args)


@function("gru.input")
def gru(device: PythonCuda, x: Tensor, hidden: Tensor, *args: Any) -> Any:
    return _net(device, GRU, x, hidden, None, *args)


@function("gru.data")
def packed_gru(device: PythonCuda, x: Tensor, batch_sizes: Tensor, hidden: Tensor, *args: Any) -> Any:
    return _packed_net(device, GRU, x, batch_sizes, hidden, None, *args)


@function("rnn_tanh.input")
def tanh_net(device: PythonCuda, x: Tensor, hidden: Tensor, *args: Any) -> Any:
    return _net(device, TANH, x, hidden, None, *args)


@function("rnn_tanh.data")
def packed_tanh_net(device: PythonCuda, x: Tensor, batch_sizes: Tensor, hidden: Tensor, *args: Any) -> Any:
    return _packed_net(device, TANH, x, batch_sizes, hidden, None, *args)


@function("rnn_relu.input")
def relu_net(device: PythonCuda, x: Tensor, hidden: Tensor, *args: Any) -> Any:
    return _net(device, RELU, x, hidden, None, *args)


@function("rnn_relu.data")
def packed_relu_net(device: PythonCuda, x: Tensor, batch_sizes: Tensor, hidden: Tensor, *args: Any) -> Any:
    return _packed_net(device, RELU, x, batch_sizes, hidden, None, *args)


def _packed_net(
    device: PythonCuda, mode: int, x: Tensor, batch_sizes: Tensor, hx: Tensor, cx: Tensor | None,
    params: Sequence[Tensor], has_biases: bool, layers: int, dropout: float, train: bool, is_bidirectional: bool,
) -> Any:  # fmt: skip
    sizes = batch_sizes.tolist()
    return _net(
        device, mode, x, hx, cx, params, has_biases, layers, dropout, train, is_bidirectional, False, sizes
    )  # fmt: skip


def _net(
    device: PythonCuda, mode: int, x: Tensor, hx: Tensor, cx: Tensor | None, params: Sequence[Tensor],
    has_biases: bool, layers: int, dropout: float, train: bool, is_bidirectional: bool, batch_first: bool,
    batch_sizes: Sequence[int] = (),
) -> Any:  # fmt: skip
    width = hx.size(2)
    projection = 0
    if mode == LSTM and cx is not None and cx.size(2) != hx.size(2):
        width, projection = cx.size(2), hx.size(2)
    with torch.no_grad():
        buffer = _flat_buffer(device, params)
    result = aten._cudnn_rnn.default(
        x, list(params), 4 if has_biases else 2, buffer, hx, cx, mode, width, projection, layers, batch_first,
        dropout, train, is_bidirectional, list(batch_sizes), _dropout_state(device, dropout, train),
    )  # fmt: skip
    return (result[0], result[1], result[2]) if mode == LSTM else (result[0], result[1])


def _flat_buffer(device: PythonCuda, params: Sequence[Tensor]) -> Tensor | None:
    """The buffer that holds all parameters, if there is one."""
    if not params or device.memory.block_of(params[0]) is None:
        return None
    address = address_of(params[0])
    is_flat = all(address_of(each) == address for each in params)
    if not is_flat or len(params) < 2:
        return None
    storage = params[0].untyped_storage()
    made = torch.empty(0, dtype=params[0].dtype, device="cuda")
    return made.set_(storage, 0, (storage.nbytes() // params[0].dtype.itemsize,), (1,))


def _dropout_state(device: PythonCuda, dropout: float, train: bool) -> Tensor:
    if not train or dropout == 0:
        return torch.empty(0, dtype=torch.uint8, device="cuda")
    if dropout not in device.dropout_states:
        device.dropout_states[dropout] = aten._cudnn_init_dropout_state.default(
            dropout, train, 0, dtype=torch.uint8, device=torch.device("cuda", 0)
        )
    return device.dropout_states[dropout]


# ---- cuDNN operators -------------------------------------------------------------------------------------------------


@kernel("_cudnn_init_dropout_state")
def init_dropout_state(device: PythonCuda, dropout: float, train: bool, seed: int, /, **kwargs: Any) -> Tensor:
    """`kwargs` contains a torch.device named `device`."""
    size = rules.dropout_states(device.num_sms, device.threads_per_sm)
    return torch.empty(size, dtype=torch.uint8, device="cuda")


@function("_cudnn_rnn_flatten_weight")
def flatten(
    device: PythonCuda, weights: Sequence[Tensor], stride: int, width: int, mode: int, hidden: int, projection: int,
    layers: int, batch_first: bool, is_bidirectional: bool,
) -> Tensor:  # fmt: skip
    """Move the weights into one buffer."""
    buffer = torch.zeros(sum(each.numel() for each in weights), dtype=weights[0].dtype, device="cuda")
    at = 0
    for each in weights:
        part = buffer[at : at + each.numel()].view(each.shape)
        part.copy_(each)
        each.set_(buffer.untyped_storage(), at, each.shape, part.stride())
        at += each.numel()
    return buffer


@kernel("_cudnn_rnn")
def forward(
    device: PythonCuda, x: Tensor, weights: Sequence[Tensor], stride: int, buffer: Tensor | None, hx: Tensor,
    cx: Tensor | None, mode: int, hidden: int, projection: int, layers: int, batch_first: bool, dropout: float,
    train: bool, is_bidirectional: bool, batch_sizes: Sequence[int], state: Tensor,
) -> Any:  # fmt: skip
    device.load_library("cudnnCreate")
    directions = 2 if is_bidirectional else 1
    out_width = projection or hidden
    is_turned = batch_first and not batch_sizes
    if is_turned:
        x = x.transpose(0, 1)
    copies = x.contiguous(), hx.contiguous(), cx.contiguous() if cx is not None else None
    out = torch.empty((*x.shape[:-1], out_width * directions), dtype=x.dtype, device="cuda")
    hy = torch.empty((layers * directions, hx.size(1), out_width), dtype=x.dtype, device="cuda")
    cy_shape = (layers * directions, hx.size(1), hidden) if cx is not None else (0,)
    cy = torch.empty(cy_shape, dtype=x.dtype, device="cuda")
    if buffer is None:
        buffer = torch.zeros(sum(each.numel() for each in weights), dtype=x.dtype, device="cuda")
    samples = _num_samples(x, batch_sizes)
    workspace = _workspace(device, samples, x, mode, hidden, directions)
    sizes = {"hidden_size": hidden, "num_layers": layers, "num_directions": directions}
    _log(device, "forward", x, hx, workspace, batch_sizes, cell=mode, **sizes)
    reserve = torch.empty(0, dtype=torch.uint8, device="cuda")
    if train:
        size = rules.recurrent_reserve(
            _KINDS[mode], samples=samples, hidden=hidden, projection=projection, layers=layers,
            directions=directions, has_dropout=dropout > 0, element_bytes=x.dtype.itemsize,
        )  # fmt: skip
        reserve = torch.empty(size, dtype=torch.uint8, device="cuda")
    del workspace, copies
    return out.transpose(0, 1) if is_turned else out, hy, cy, reserve, buffer


@kernel("_cudnn_rnn_backward")
def backward(
    device: PythonCuda, x: Tensor, weights: Sequence[Tensor], stride: int, buffer: Tensor, hx: Tensor,
    cx: Tensor | None, out: Tensor, grad_out: Tensor | None, grad_hy: Tensor | None, grad_cy: Tensor | None, mode: int,
    hidden: int, projection: int, layers: int, batch_first: bool, dropout: float, train: bool, is_bidirectional: bool,
    batch_sizes: Sequence[int], state: Tensor, reserve: Tensor, mask: Sequence[bool],
) -> Any:  # fmt: skip
    directions = 2 if is_bidirectional else 1
    is_turned = batch_first and not batch_sizes
    grad_out = grad_out if grad_out is not None else torch.zeros_like(out)
    grad_hy = grad_hy if grad_hy is not None else torch.zeros_like(hx)
    if cx is not None and grad_cy is None:
        grad_cy = torch.zeros_like(cx)
    if is_turned:
        x, grad_out, out = x.transpose(0, 1), grad_out.transpose(0, 1), out.transpose(0, 1)
    samples = _num_samples(x, batch_sizes)
    copies = [each.contiguous() for each in (x, grad_out, out, grad_hy, hx)]
    dx = torch.empty(x.shape, dtype=x.dtype, device="cuda")
    dhx = torch.empty(hx.shape, dtype=hx.dtype, device="cuda")
    dcx = torch.empty(cx.shape, dtype=cx.dtype, device="cuda") if cx is not None else None
    sizes = {"hidden_size": hidden, "num_layers": layers, "num_directions": directions}
    workspace = _workspace(device, samples, x, mode, hidden, directions)
    _log(device, "data", x, hx, workspace, batch_sizes, cell=mode, **sizes)
    del workspace
    grads = []
    if mask[3]:
        dw = torch.zeros(buffer.shape, dtype=buffer.dtype, device="cuda")
        workspace = _workspace(device, samples, x, mode, hidden, directions)
        _log(device, "weights", x, hx, workspace, batch_sizes, cell=mode, **sizes)
        del workspace
        at = 0
        for each in weights:
            grads.append(dw[at : at + each.numel()].view(each.shape))
            at += each.numel()
    del copies
    return dx.transpose(0, 1) if is_turned else dx, dhx, dcx, grads


def _log(
    device: PythonCuda, direction: Direction, x: Tensor, hx: Tensor, workspace: Tensor, batch_sizes: Sequence[int],
    **sizes: int,
) -> None:  # fmt: skip
    device.library(
        _FUNCTIONS[direction], RECURRENT, workspace_bytes=workspace.numel(), batch_size=hx.size(1),
        num_steps=len(batch_sizes) or x.size(0), input_size=x.size(-1), direction=DIRECTIONS.index(direction),
        data_type=CUDNN_DATA_TYPES[str(x.dtype).removeprefix("torch.")], **sizes,
    )  # fmt: skip


def _num_samples(x: Tensor, batch_sizes: Sequence[int]) -> int:
    """Steps times sequences; a packed batch counts as if all sequences were as long as the longest."""
    return len(batch_sizes) * batch_sizes[0] if batch_sizes else int(x.size(0) * x.size(1))


def _workspace(device: PythonCuda, samples: int, x: Tensor, mode: int, hidden: int, directions: int) -> Tensor:
    with device.rule("cuDNN workspace"):
        return device.buffer(
            rules.recurrent_workspace(
                _KINDS[mode], samples=samples, hidden=hidden, directions=directions, element_bytes=x.dtype.itemsize
            )
        )


# ---- cells: PyTorch's own kernels (RNN.cu), for which not every version has shape functions --------------------------


@kernel("_thnn_fused_gru_cell")
def gru_cell(device: PythonCuda, input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, *biases: Any) -> Any:
    workspace = input_gates.new_empty((hx.size(0), 5 * hx.size(1)))
    return torch.empty_like(hx), workspace


@kernel("_thnn_fused_gru_cell_backward")
def gru_cell_backward(device: PythonCuda, grad: Tensor, workspace: Tensor, has_bias: bool) -> Any:
    shape = (grad.size(0), 3 * grad.size(1))
    gates = [workspace.new_empty(shape) for _ in range(2)]
    grad_hx = torch.empty_like(grad)
    return *gates, grad_hx, *(gate.sum(0) if has_bias else None for gate in gates)


@kernel("_thnn_fused_lstm_cell")
def lstm_cell(device: PythonCuda, input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, *biases: Any) -> Any:
    workspace = torch.empty_like(input_gates)
    return torch.empty_like(cx), torch.empty_like(cx), workspace


@kernel("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    device: PythonCuda, grad_hy: Tensor, grad_cy: Tensor, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> Any:
    gates, grad_cx = torch.empty_like(workspace), torch.empty_like(cx)
    return gates, grad_cx, gates.sum(0) if has_bias else None
