"""What the virtual GPU writes down about calls of libraries, called as their headers declare them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from foretell import gpus
from foretell.protocol import native_log
from foretell.records import LibraryBytes
from foretell.virtual.environment import environment, library_paths

R_32F, R_64F, C_32F, R_16BF = 0, 1, 4, 14  # cudaDataType
F32, F64, TF32 = 68, 70, 77  # cublasComputeType_t
P = "p()"  # a pointer that does not matter


def logged(folder: Path, *calls: str, gpu: str = "a100-40gb") -> list[dict[str, Any]]:
    """The library calls in the log of a process that makes these, one dictionary each."""
    program = "\n".join(
        [
            "from ctypes import *",
            f"cuda = CDLL({str(library_paths().cuda)!r})",
            "p, i64, f = c_void_p, c_longlong, cuda.__getattr__",
            "handle, lt, comm = p(), p(), p()",
            "cuda.cublasCreate_v2(byref(handle)); cuda.cublasLtCreate(byref(lt))",
            *calls,
        ]
    )
    nothing = LibraryBytes(cublas=0, cudnn=0, nccl=0)
    variables = environment(
        gpus.find(gpu), context_bytes=0, libraries=nothing, log_prefix=str(folder / "native"), base={}
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=variables)
    (binary,) = folder.glob("native-*.bin")
    names = binary.with_suffix(".names").read_text().splitlines()
    kinds = {kind.number: kind for kind in native_log.KINDS}
    found = []
    for _, number, name, *words in native_log.RECORD.iter_unpack(binary.read_bytes()):
        if number == 0:
            break  # space that was taken beforehand
        kind = kinds[number]
        if kind.is_call and kind is not native_log.LIBRARY_LOADED:
            values = {field.name: field.of(words[field.word]) for field in kind.fields}
            found.append({"kind": kind.name, "function": names[name], **values})
    return found


def product(function: str, m: int, n: int, k: int, batch: int, types: tuple[int, int], compute: int) -> dict[str, Any]:
    return {
        "kind": "matrix_product", "function": function, "m": m, "n": n, "k": k, "batch_count": batch,
        "input_type": types[0], "output_type": types[1], "compute_type": compute, "device": 0,
    }  # fmt: skip


def test_a_product_of_cublas_is_recorded_with_its_sizes_and_types(tmp_path: Path) -> None:
    sizes = "handle, 0, 1, 3, 5, 7"
    strided = f"{P}, 1, i64(1), {P}, 1, i64(1), {P}, {P}, 1, i64(1), 11"
    calls = logged(
        tmp_path,
        f"cuda.cublasSgemm_v2({sizes}, {P}, {P}, 1, {P}, 1, {P}, {P}, 1)",
        f"cuda.cublasDgemm_v2({sizes}, {P}, {P}, 1, {P}, 1, {P}, {P}, 1)",
        f"cuda.cublasCgemmStridedBatched({sizes}, {P}, {strided})",
        f"cuda.cublasSgemmBatched({sizes}, {P}, {P}, 1, {P}, 1, {P}, {P}, 1, 11)",
        f"cuda.cublasGemmEx({sizes}, {P}, {P}, {R_16BF}, 1, {P}, {R_16BF}, 1, {P}, {P}, {R_32F}, 1, {F32}, -1)",
        f"cuda.cublasGemmBatchedEx({sizes}, {P}, {P}, 14, 1, {P}, 14, 1, {P}, {P}, {R_32F}, 1, 11, {F32}, -1)",
        f"cuda.cublasGemmStridedBatchedEx({sizes}, {P}, {P}, 14, 1, i64(1), {P}, 14, 1, i64(1), {P}, {P}, 14, 1, "
        f"i64(1), 11, {F32}, -1)",
        f"cuda.cublasSgemv_v2(handle, 0, 3, 5, {P}, {P}, 1, {P}, 1, {P}, {P}, 1)",
        f"cuda.cublasSgemv_v2(handle, 1, 3, 5, {P}, {P}, 1, {P}, 1, {P}, {P}, 1)",
    )
    assert calls == [
        product("cublasSgemm_v2", 3, 5, 7, 1, (R_32F, R_32F), F32),
        product("cublasDgemm_v2", 3, 5, 7, 1, (R_64F, R_64F), F64),
        product("cublasCgemmStridedBatched", 3, 5, 7, 11, (C_32F, C_32F), F32),
        product("cublasSgemmBatched", 3, 5, 7, 11, (R_32F, R_32F), F32),
        product("cublasGemmEx", 3, 5, 7, 1, (R_16BF, R_32F), F32),
        product("cublasGemmBatchedEx", 3, 5, 7, 11, (R_16BF, R_32F), F32),
        product("cublasGemmStridedBatchedEx", 3, 5, 7, 11, (R_16BF, R_16BF), F32),
        product("cublasSgemv_v2", 3, 1, 5, 1, (R_32F, R_32F), F32),
        product("cublasSgemv_v2", 5, 1, 3, 1, (R_32F, R_32F), F32),
    ]


def test_single_precision_is_recorded_as_tf32_where_the_handle_allows_it(tmp_path: Path) -> None:
    calls = logged(
        tmp_path,
        "cuda.cublasSetMathMode(handle, 3)",
        f"cuda.cublasSgemm_v2(handle, 0, 1, 3, 5, 7, {P}, {P}, 1, {P}, 1, {P}, {P}, 1)",
        f"cuda.cublasDgemm_v2(handle, 0, 1, 3, 5, 7, {P}, {P}, 1, {P}, 1, {P}, {P}, 1)",
    )
    assert [call["compute_type"] for call in calls] == [TF32, F64]


def test_a_product_of_cublaslt_is_recorded_from_its_descriptors(tmp_path: Path) -> None:
    """A is stored 7 x 3 and transposed; 4 of them."""
    made = (
        "operation, a, b, d = (p() for _ in range(4))",
        f"cuda.cublasLtMatmulDescCreate(byref(operation), {TF32}, 0)",
        "cuda.cublasLtMatmulDescSetAttribute(operation, 3, byref(c_int(1)), c_size_t(4))",
        f"cuda.cublasLtMatrixLayoutCreate(byref(a), {R_16BF}, i64(7), i64(3), i64(7))",
        f"cuda.cublasLtMatrixLayoutCreate(byref(b), {R_16BF}, i64(7), i64(5), i64(7))",
        f"cuda.cublasLtMatrixLayoutCreate(byref(d), {R_32F}, i64(3), i64(5), i64(3))",
        "for layout in (a, b, d): cuda.cublasLtMatrixLayoutSetAttribute(layout, 5, byref(c_int(4)), c_size_t(4))",
    )
    call = f"cuda.cublasLtMatmul(lt, operation, {P}, {P}, a, {P}, b, {P}, {P}, d, {P}, d, {P}, {P}, c_size_t(0), {P})"
    assert logged(tmp_path, *made, call) == [product("cublasLtMatmul", 3, 5, 7, 4, (R_16BF, R_32F), TF32)]


def test_descriptors_in_the_callers_memory_keep_within_their_size(tmp_path: Path) -> None:
    """64 bytes a layout in CUDA 12.4, 112 in 13.2; 256 bytes an operation in both."""
    calls = logged(
        tmp_path,
        "a, d, operation = ((c_char * 65)(*b'x' * 65) for _ in range(3))",
        f"cuda.cublasLtMatrixLayoutInit_internal(a, c_size_t(64), {R_32F}, i64(3), i64(7), i64(3))",
        f"cuda.cublasLtMatrixLayoutInit_internal(d, c_size_t(64), {R_32F}, i64(3), i64(5), i64(3))",
        f"cuda.cublasLtMatmulDescInit_internal(operation, c_size_t(64), {F32}, 0)",
        "assert a[64] == d[64] == operation[64] == b'x'",
        f"cuda.cublasLtMatmul(lt, operation, {P}, {P}, a, {P}, d, {P}, {P}, d, {P}, d, {P}, {P}, c_size_t(0), {P})",
    )
    assert calls == [product("cublasLtMatmul", 3, 5, 7, 1, (R_32F, R_32F), F32)]


def test_a_product_with_a_descriptor_nobody_here_made_is_recorded_by_name_alone(tmp_path: Path) -> None:
    calls = logged(
        tmp_path,
        "foreign = (c_char * 256)()",
        "cuda.cublasLtMatrixLayoutSetAttribute(foreign, 5, byref(c_int(4)), c_size_t(4))",
        "assert bytes(foreign) == bytes(256)",
        f"cuda.cublasLtMatmul(lt, foreign, {P}, {P}, foreign, {P}, foreign, {P}, {P}, foreign, {P}, foreign, {P}, {P}, "
        f"c_size_t(0), {P})",
    )
    assert calls == [{"kind": "library_call", "function": "cublasLtMatmul", "workspace_bytes": 0, "device": 0}]


def test_a_collective_fails_where_the_other_ranks_could_not_hear_of_it(tmp_path: Path) -> None:
    """A full disk, here a limit of files. ncclInt32 is 2, ncclSystemError is 2."""
    logged(
        tmp_path,
        "import resource",
        "class Id(Structure): _fields_ = [('bytes', c_char * 128)]",
        "data = p(); cuda.cudaMalloc(byref(data), c_size_t(512))",
        "assert cuda.ncclCommInitRank(byref(comm), 2, Id(), 0) == 0",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))",
        f"result = cuda.ncclAllReduce(data, data, c_size_t(1), 2, 0, comm, {P})",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)",
        "cuda.ncclGetLastError.restype = c_char_p",
        "said = cuda.ncclGetLastError(None)",
        "assert (result, said) == (2, b'foretell cannot write to its capture folder: File too large'), (result, said)",
    )


def test_a_collective_is_recorded_with_its_operation_count_type_and_ranks(tmp_path: Path) -> None:
    """ncclCommInitAll makes two communicators, of two ranks each; ncclFloat16 is 6, ncclFloat32 7."""
    data = "data, data, c_size_t(1000), 6"
    calls = logged(
        tmp_path,
        "comms, data = (p * 2)(), p()",
        "cuda.ncclCommInitAll(comms, 2, None)",
        "cuda.cudaMalloc(byref(data), c_size_t(8000)); comm = p(comms[0])",
        f"cuda.ncclAllReduce({data}, 0, comm, {P})",
        f"cuda.ncclBroadcast({data}, 0, comm, {P})",
        f"cuda.ncclReduce({data}, 0, 0, comm, {P})",
        f"cuda.ncclReduceScatter({data}, 0, comm, {P})",
        f"cuda.ncclAllGather({data}, comm, {P})",
        f"cuda.ncclAlltoAll({data}, comm, {P})",
        f"cuda.ncclGather({data}, 0, comm, {P})",
        f"cuda.ncclSend(data, c_size_t(1000), 6, 1, comm, {P})",
        f"cuda.ncclRecv(data, c_size_t(1000), 6, 1, comm, {P})",
        f"cuda.ncclBcast(data, c_size_t(2000), 7, 0, comm, {P})",
    )
    expected = {"kind": "collective", "count": 1000, "data_type": 6, "bytes": 2000, "num_ranks": 2, "device": 0}
    functions = ("AllReduce", "Broadcast", "Reduce", "ReduceScatter", "AllGather", "AlltoAll", "Gather", "Send", "Recv")
    assert calls[:-1] == [
        {**expected, "function": f"nccl{function}", "operation": number} for number, function in enumerate(functions)
    ]
    bcast = {"function": "ncclBcast", "operation": 1, "count": 2000, "data_type": 7, "bytes": 8000}
    assert calls[-1] == {**expected, **bcast}


def test_a_recurrent_net_is_recorded_with_its_sizes(tmp_path: Path) -> None:
    """An LSTM (2) of two layers in both directions (1), 9 steps of 4 samples."""
    descriptors = "net, x = p(), p()"
    forward = f"cuda.cudnnRNNForward({P}, net, 1, {P}, x, {', '.join([P] * 9)}, c_size_t(0), {P}, c_size_t(123), {P})"
    (call,) = logged(
        tmp_path,
        descriptors,
        "cuda.cudnnCreateRNNDescriptor(byref(net)); cuda.cudnnCreateRNNDataDescriptor(byref(x))",
        f"cuda.cudnnSetRNNDescriptor_v8(net, 0, 2, 2, 1, 0, 0, 0, 0, 20, 30, 30, 2, {P}, 0)",
        f"cuda.cudnnSetRNNDataDescriptor(x, 0, 0, 9, 4, 20, {P}, {P})",
        forward,
    )
    assert call == {
        "kind": "recurrent", "function": "cudnnRNNForward", "workspace_bytes": 123, "num_steps": 9, "batch_size": 4,
        "input_size": 20, "hidden_size": 30, "device": 0, "direction": 0, "cell": native_log.CELLS.index("lstm"),
        "data_type": 0, "num_layers": 2, "num_directions": 2,
    }  # fmt: skip


def test_what_a_profiler_says_before_each_operator_is_not_recorded(tmp_path: Path) -> None:
    pushed = "assert [f('cuptiActivityPushExternalCorrelationId')(2, i64(n)) for n in range(3)] == [0, 0, 0]"
    found = logged(tmp_path, pushed, "f('cuptiActivityEnable')(1)")
    assert [call["function"] for call in found if call["function"].startswith("cupti")] == ["cuptiActivityEnable"]
