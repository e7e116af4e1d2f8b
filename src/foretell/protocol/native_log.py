"""The native log: what the virtual GPU, or the engine that stands in for it, records about a process.

`native-<pid>.bin` is a sequence of 64-byte records: the time in microseconds, the kind, the number of a line of
`native-<pid>.names`, and six words whose meaning depends on the kind. A word holds one field, or several that are
packed from the low bits up. `python -m foretell.protocol.generate` writes the C header and the table of the docs.

Every Python process of a job may load this module: it has to stay light.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

RECORD = struct.Struct("<QIIqqqqqq")
"""time_us, kind, name, a0 ... a5."""
NUM_WORDS = 6

DIRECTIONS = ("forward", "weights", "data")
"""What is computed: the output, the gradient of the weights, the gradient of the input."""
WORKSPACE_SOURCES = ("asked", "rule", "measured")
"""Who says how large a workspace is: the installed cuDNN, foretell's own rule, a measurement on a real card."""
CELLS = ("relu", "tanh", "lstm", "gru")
"""cudnnRNNMode_t."""
COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather", "all_to_all", "gather", "send", "receive",
)  # fmt: skip
ENTRIES = ("exact", "bound")
"""How many entries a sparse result has: exactly that many, or at most."""
ROUTES = ("within_host", "to_device", "to_host", "within_device")
"""Where a copy goes."""
WAITS_FOR = ("device", "stream", "event")
"""What the host waits for."""
EVENT_USES = ("record", "wait")
"""A stream records an event, or waits for one that another stream has recorded."""
EDGES = ("begin", "end")
"""Of the capture of a graph."""


CUDA_DATA_TYPES = {
    "float32": 0, "float64": 1, "float16": 2, "int8": 3, "complex64": 4, "complex128": 5, "bfloat16": 14,
    "float8_e4m3fn": 28, "float8_e5m2": 29,
}  # fmt: skip
"""cudaDataType, by torch's names."""
CUDNN_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
"""cudnnDataType_t, by torch's names."""


class Field(NamedTuple):
    name: str
    word: int
    shift: int
    bits: int
    choices: tuple[str, ...]
    """What the numbers from 0 on mean; empty: the number is meant."""

    def of(self, word: int) -> int:
        return word if self.bits == 64 else word >> self.shift & (1 << self.bits) - 1


class Kind(NamedTuple):
    number: int
    name: str
    subject: str
    """What the record's name is a name of."""
    meaning: str
    fields: tuple[Field, ...]
    is_call: bool
    """A call of a library function, of whatever kind."""

    def words(self, **values: int) -> list[int]:
        """a0 ... a5; a field that is not given is zero."""
        words = [0] * NUM_WORDS
        for field in self.fields:
            value = values.pop(field.name, 0)
            if field.bits < 64 and not 0 <= value < 1 << field.bits:
                raise ValueError(f"{self.name}: {field.name} is {value}, which does not fit into {field.bits} bits")
            words[field.word] |= value << field.shift
        if values:
            raise ValueError(f"{self.name} has no field {', '.join(values)}")
        return [word - (word >> 63 << 64) for word in words]  # signed, as C has them

    def pack(self, time_us: int, name: int, **values: int) -> bytes:
        return RECORD.pack(time_us, self.number, name, *self.words(**values))


_CHOICES = {
    "direction": DIRECTIONS,
    "workspace_source": WORKSPACE_SOURCES,
    "cell": CELLS,
    "operation": COLLECTIVES,
    "entries_are": ENTRIES,
    "route": ROUTES,
    "waits_for": WAITS_FOR,
    "use": EVENT_USES,
    "edge": EDGES,
}


def _kind(number: int, name: str, subject: str, meaning: str, *words: str, is_call: bool = False) -> Kind:
    """A word is the name of its field, or `name:bits` of several."""
    fields = []
    for index, word in enumerate(words):
        shift = 0
        for text in word.split():
            field, _, bits = text.partition(":")
            fields.append(Field(field, index, shift, int(bits or 64), _CHOICES.get(field, ())))
            shift += int(bits or 64)
        assert shift <= 64, (name, word)
    assert len(words) <= NUM_WORDS, name
    return Kind(number, name, subject, meaning, tuple(fields), is_call)


ALLOCATION = _kind(
    1, "allocation", "function",
    "device memory was allocated; in_use: bytes on the device after it; card: the number of the device in the machine, "
    "whatever CUDA_VISIBLE_DEVICES says",
    "address", "bytes", "device", "in_use", "card",
)  # fmt: skip
FREE = _kind(
    2, "free", "function", "device memory was freed; in_use: bytes on the device after it",
    "address", "bytes", "device", "in_use",
)  # fmt: skip
LAUNCH = _kind(
    3, "launch", "kernel", "a kernel was launched",
    "grid_x", "grid_y", "grid_z", "block_x:16 block_y:16 block_z:32", "shared_bytes", "device:8 stream:56",
)  # fmt: skip
LIBRARY_CALL = _kind(
    4, "library_call", "function", "a library function was called that has no kind of its own",
    "workspace_bytes", "", "", "", "", "device", is_call=True,
)  # fmt: skip
UNIMPLEMENTED = _kind(5, "unimplemented", "function", "the virtual GPU lacks the function: foretell exits with 2")
UNKNOWN_READ = _kind(6, "unknown_read", "function", "the host read bytes whose values are unknown", "bytes", "address")
OUT_OF_MEMORY = _kind(
    7, "out_of_memory", "function", "an allocation was refused", "requested_bytes", "free_bytes", "device"
)
STATIC_RUNTIME = _kind(8, "static_runtime", "file", "a library brings its own CUDA runtime: foretell exits with 2")
WORKSPACE = _kind(
    9, "workspace", "-", "PyTorch handed memory to a library as its workspace", "address", "bytes", "device"
)
CONVOLUTION = _kind(
    10, "convolution", "function", "a convolution, or one of its gradients; data_type: cudnnDataType_t",
    "workspace_bytes", "x_bytes", "y_bytes", "w_bytes", "multiply_adds",
    "device:8 direction:8 workspace_source:8 data_type:8", is_call=True,
)  # fmt: skip
MATRIX_PRODUCT = _kind(
    11, "matrix_product", "function",
    "a product of m x k and k x n; types: cudaDataType of A and of the result; compute_type: cublasComputeType_t, "
    "0 where it is not known",
    "m", "n", "k", "batch_count", "input_type:8 output_type:8 compute_type:8", "device", is_call=True,
)  # fmt: skip
COLLECTIVE = _kind(
    12, "collective", "function", "communication of NCCL; count as in its call, data_type: ncclDataType_t",
    "operation", "count", "data_type", "bytes", "num_ranks", "device", is_call=True,
)  # fmt: skip
RECURRENT = _kind(
    13, "recurrent", "function", "a recurrent net, or one of its gradients; data_type: cudnnDataType_t",
    "workspace_bytes", "num_steps", "batch_size", "input_size", "hidden_size",
    "device:8 direction:8 cell:8 data_type:8 num_layers:16 num_directions:8", is_call=True,
)  # fmt: skip
SPARSE = _kind(
    14, "sparse", "function", "a sum or product of sparse matrices; entries: of the result",
    "workspace_bytes", "entries", "entries_are", "", "", "device", is_call=True,
)  # fmt: skip
LIBRARY_LOADED = _kind(
    15, "library_loaded", "function", "the first call of its kind loads the library's code onto the card",
    "code_bytes", "", "", "", "", "device", is_call=True,
)  # fmt: skip
GRAPH_LAUNCH = _kind(
    16, "graph_launch", "function", "a captured graph was launched; graph: the number of its capture",
    "num_nodes", "graph", "", "", "", "device:8 stream:56", is_call=True,
)  # fmt: skip
NO_ADDRESS_SPACE = _kind(
    17, "no_address_space", "-", "the host limits address space, so memory was refused: foretell exits with 2",
    "requested_bytes",
)  # fmt: skip
COPY = _kind(
    18, "copy", "function",
    "memory was copied; is_pinned: the host's side is; is_blocking: the call returns when it is done",
    "bytes", "route:8 is_pinned:8 is_blocking:8", "", "", "", "device:8 stream:56",
)  # fmt: skip
MEMSET = _kind(19, "memset", "function", "memory was set", "bytes", "", "", "", "", "device:8 stream:56")
SYNCHRONIZATION = _kind(
    20, "synchronization", "function", "the host waited for the GPU; event: its number, where it waits for one",
    "waits_for", "event", "", "", "", "device:8 stream:56",
)  # fmt: skip
EVENT_USE = _kind(
    21, "event_use", "function", "a stream recorded an event, or waited for one; event: its number",
    "use", "event", "", "", "", "device:8 stream:56",
)  # fmt: skip
CAPTURE = _kind(
    22, "capture", "function",
    "a stream began to capture a graph, or ended: the work between the two does not run; graph: its number",
    "edge", "graph", "", "", "", "device:8 stream:56",
)  # fmt: skip
CODE = _kind(
    23, "code", "file",
    "the first kernel of a container of machine code was launched; offset: from where the file begins in memory",
    "offset",
)  # fmt: skip

KINDS = (
    ALLOCATION, FREE, LAUNCH, LIBRARY_CALL, UNIMPLEMENTED, UNKNOWN_READ, OUT_OF_MEMORY, STATIC_RUNTIME, WORKSPACE,
    CONVOLUTION, MATRIX_PRODUCT, COLLECTIVE, RECURRENT, SPARSE, LIBRARY_LOADED, GRAPH_LAUNCH,
    NO_ADDRESS_SPACE, COPY, MEMSET, SYNCHRONIZATION, EVENT_USE, CAPTURE, CODE,
)  # fmt: skip
