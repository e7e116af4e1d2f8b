/* The records of the native log. Made by `python -m foretell.protocol.generate header`: change
 * src/foretell/protocol/native_log.py, not this file. */
#ifndef FORETELL_LOG_KINDS_H
#define FORETELL_LOG_KINDS_H

#include <stdint.h>

enum LogKind {
    LOG_ALLOCATION = 1,
    LOG_FREE = 2,
    LOG_LAUNCH = 3,
    LOG_LIBRARY_CALL = 4,
    LOG_UNIMPLEMENTED = 5,
    LOG_UNKNOWN_READ = 6,
    LOG_OUT_OF_MEMORY = 7,
    LOG_STATIC_RUNTIME = 8,
    LOG_WORKSPACE = 9,
    LOG_CONVOLUTION = 10,
    LOG_MATRIX_PRODUCT = 11,
    LOG_COLLECTIVE = 12,
    LOG_RECURRENT = 13,
    LOG_SPARSE = 14,
    LOG_LIBRARY_LOADED = 15,
    LOG_GRAPH_LAUNCH = 16,
    LOG_NO_ADDRESS_SPACE = 17,
    LOG_COPY = 18,
    LOG_MEMSET = 19,
    LOG_SYNCHRONIZATION = 20,
    LOG_EVENT_USE = 21,
    LOG_CAPTURE = 22,
    LOG_CODE = 23,
};

void log_event(enum LogKind kind, const char *name, const int64_t words[6]);

enum { DIRECTION_FORWARD, DIRECTION_WEIGHTS, DIRECTION_DATA };

enum { WORKSPACE_SOURCE_ASKED, WORKSPACE_SOURCE_RULE, WORKSPACE_SOURCE_MEASURED };

enum { OPERATION_ALL_REDUCE, OPERATION_BROADCAST, OPERATION_REDUCE, OPERATION_REDUCE_SCATTER, OPERATION_ALL_GATHER,
    OPERATION_ALL_TO_ALL, OPERATION_GATHER, OPERATION_SEND, OPERATION_RECEIVE };

enum { CELL_RELU, CELL_TANH, CELL_LSTM, CELL_GRU };

enum { ENTRIES_ARE_EXACT, ENTRIES_ARE_BOUND };

enum { ROUTE_WITHIN_HOST, ROUTE_TO_DEVICE, ROUTE_TO_HOST, ROUTE_WITHIN_DEVICE };

enum { WAITS_FOR_DEVICE, WAITS_FOR_STREAM, WAITS_FOR_EVENT };

enum { USE_RECORD, USE_WAIT };

enum { EDGE_BEGIN, EDGE_END };

/* Device memory was allocated; in_use: bytes on the device after it; card: the number of the device in the machine,
 * whatever CUDA_VISIBLE_DEVICES says. */
typedef struct { int64_t address, bytes, device, in_use, card; } AllocationRecord;
static inline void log_allocation(const char *name, AllocationRecord r) {
    const int64_t words[6] = {r.address, r.bytes, r.device, r.in_use, r.card, 0};
    log_event(LOG_ALLOCATION, name, words);
}

/* Device memory was freed; in_use: bytes on the device after it. */
typedef struct { int64_t address, bytes, device, in_use; } FreeRecord;
static inline void log_free(const char *name, FreeRecord r) {
    const int64_t words[6] = {r.address, r.bytes, r.device, r.in_use, 0, 0};
    log_event(LOG_FREE, name, words);
}

/* A kernel was launched. */
typedef struct { int64_t grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, device, stream; }
    LaunchRecord;
static inline void log_launch(const char *name, LaunchRecord r) {
    const int64_t words[6] = {r.grid_x, r.grid_y, r.grid_z, r.block_x | r.block_y << 16 | r.block_z << 32,
        r.shared_bytes, r.device | r.stream << 8};
    log_event(LOG_LAUNCH, name, words);
}

/* A library function was called that has no kind of its own. */
typedef struct { int64_t workspace_bytes, device; } LibraryCallRecord;
static inline void log_library_call(const char *name, LibraryCallRecord r) {
    const int64_t words[6] = {r.workspace_bytes, 0, 0, 0, 0, r.device};
    log_event(LOG_LIBRARY_CALL, name, words);
}

/* The virtual GPU lacks the function: foretell exits with 2. */
static inline void log_unimplemented(const char *name) {
    log_event(LOG_UNIMPLEMENTED, name, (const int64_t[6]){0});
}

/* The host read bytes whose values are unknown. */
typedef struct { int64_t bytes, address; } UnknownReadRecord;
static inline void log_unknown_read(const char *name, UnknownReadRecord r) {
    const int64_t words[6] = {r.bytes, r.address, 0, 0, 0, 0};
    log_event(LOG_UNKNOWN_READ, name, words);
}

/* An allocation was refused. */
typedef struct { int64_t requested_bytes, free_bytes, device; } OutOfMemoryRecord;
static inline void log_out_of_memory(const char *name, OutOfMemoryRecord r) {
    const int64_t words[6] = {r.requested_bytes, r.free_bytes, r.device, 0, 0, 0};
    log_event(LOG_OUT_OF_MEMORY, name, words);
}

/* A library brings its own CUDA runtime: foretell exits with 2. */
static inline void log_static_runtime(const char *name) {
    log_event(LOG_STATIC_RUNTIME, name, (const int64_t[6]){0});
}

/* PyTorch handed memory to a library as its workspace. */
typedef struct { int64_t address, bytes, device; } WorkspaceRecord;
static inline void log_workspace(const char *name, WorkspaceRecord r) {
    const int64_t words[6] = {r.address, r.bytes, r.device, 0, 0, 0};
    log_event(LOG_WORKSPACE, name, words);
}

/* A convolution, or one of its gradients; data_type: cudnnDataType_t. */
typedef struct { int64_t workspace_bytes, x_bytes, y_bytes, w_bytes, multiply_adds, device, direction, workspace_source,
    data_type; } ConvolutionRecord;
static inline void log_convolution(const char *name, ConvolutionRecord r) {
    const int64_t words[6] = {r.workspace_bytes, r.x_bytes, r.y_bytes, r.w_bytes, r.multiply_adds,
        r.device | r.direction << 8 | r.workspace_source << 16 | r.data_type << 24};
    log_event(LOG_CONVOLUTION, name, words);
}

/* A product of m x k and k x n; types: cudaDataType of A and of the result; compute_type: cublasComputeType_t, 0 where
 * it is not known. */
typedef struct { int64_t m, n, k, batch_count, input_type, output_type, compute_type, device; } MatrixProductRecord;
static inline void log_matrix_product(const char *name, MatrixProductRecord r) {
    const int64_t words[6] = {r.m, r.n, r.k, r.batch_count, r.input_type | r.output_type << 8 | r.compute_type << 16,
        r.device};
    log_event(LOG_MATRIX_PRODUCT, name, words);
}

/* Communication of NCCL; count as in its call, data_type: ncclDataType_t. */
typedef struct { int64_t operation, count, data_type, bytes, num_ranks, device; } CollectiveRecord;
static inline void log_collective(const char *name, CollectiveRecord r) {
    const int64_t words[6] = {r.operation, r.count, r.data_type, r.bytes, r.num_ranks, r.device};
    log_event(LOG_COLLECTIVE, name, words);
}

/* A recurrent net, or one of its gradients; data_type: cudnnDataType_t. */
typedef struct { int64_t workspace_bytes, num_steps, batch_size, input_size, hidden_size, device, direction, cell,
    data_type, num_layers, num_directions; } RecurrentRecord;
static inline void log_recurrent(const char *name, RecurrentRecord r) {
    const int64_t words[6] = {r.workspace_bytes, r.num_steps, r.batch_size, r.input_size, r.hidden_size,
        r.device | r.direction << 8 | r.cell << 16 | r.data_type << 24 | r.num_layers << 32 | r.num_directions << 48};
    log_event(LOG_RECURRENT, name, words);
}

/* A sum or product of sparse matrices; entries: of the result. */
typedef struct { int64_t workspace_bytes, entries, entries_are, device; } SparseRecord;
static inline void log_sparse(const char *name, SparseRecord r) {
    const int64_t words[6] = {r.workspace_bytes, r.entries, r.entries_are, 0, 0, r.device};
    log_event(LOG_SPARSE, name, words);
}

/* The first call of its kind loads the library's code onto the card. */
typedef struct { int64_t code_bytes, device; } LibraryLoadedRecord;
static inline void log_library_loaded(const char *name, LibraryLoadedRecord r) {
    const int64_t words[6] = {r.code_bytes, 0, 0, 0, 0, r.device};
    log_event(LOG_LIBRARY_LOADED, name, words);
}

/* A captured graph was launched; graph: the number of its capture. */
typedef struct { int64_t num_nodes, graph, device, stream; } GraphLaunchRecord;
static inline void log_graph_launch(const char *name, GraphLaunchRecord r) {
    const int64_t words[6] = {r.num_nodes, r.graph, 0, 0, 0, r.device | r.stream << 8};
    log_event(LOG_GRAPH_LAUNCH, name, words);
}

/* The host limits address space, so memory was refused: foretell exits with 2. */
typedef struct { int64_t requested_bytes; } NoAddressSpaceRecord;
static inline void log_no_address_space(const char *name, NoAddressSpaceRecord r) {
    const int64_t words[6] = {r.requested_bytes, 0, 0, 0, 0, 0};
    log_event(LOG_NO_ADDRESS_SPACE, name, words);
}

/* Memory was copied; is_pinned: the host's side is; is_blocking: the call returns when it is done. */
typedef struct { int64_t bytes, route, is_pinned, is_blocking, device, stream; } CopyRecord;
static inline void log_copy(const char *name, CopyRecord r) {
    const int64_t words[6] = {r.bytes, r.route | r.is_pinned << 8 | r.is_blocking << 16, 0, 0, 0,
        r.device | r.stream << 8};
    log_event(LOG_COPY, name, words);
}

/* Memory was set. */
typedef struct { int64_t bytes, device, stream; } MemsetRecord;
static inline void log_memset(const char *name, MemsetRecord r) {
    const int64_t words[6] = {r.bytes, 0, 0, 0, 0, r.device | r.stream << 8};
    log_event(LOG_MEMSET, name, words);
}

/* The host waited for the GPU; event: its number, where it waits for one. */
typedef struct { int64_t waits_for, event, device, stream; } SynchronizationRecord;
static inline void log_synchronization(const char *name, SynchronizationRecord r) {
    const int64_t words[6] = {r.waits_for, r.event, 0, 0, 0, r.device | r.stream << 8};
    log_event(LOG_SYNCHRONIZATION, name, words);
}

/* A stream recorded an event, or waited for one; event: its number. */
typedef struct { int64_t use, event, device, stream; } EventUseRecord;
static inline void log_event_use(const char *name, EventUseRecord r) {
    const int64_t words[6] = {r.use, r.event, 0, 0, 0, r.device | r.stream << 8};
    log_event(LOG_EVENT_USE, name, words);
}

/* A stream began to capture a graph, or ended: the work between the two does not run; graph: its number. */
typedef struct { int64_t edge, graph, device, stream; } CaptureRecord;
static inline void log_capture(const char *name, CaptureRecord r) {
    const int64_t words[6] = {r.edge, r.graph, 0, 0, 0, r.device | r.stream << 8};
    log_event(LOG_CAPTURE, name, words);
}

/* The first kernel of a container of machine code was launched; offset: from where the file begins in memory. */
typedef struct { int64_t offset; } CodeRecord;
static inline void log_code(const char *name, CodeRecord r) {
    const int64_t words[6] = {r.offset, 0, 0, 0, 0, 0};
    log_event(LOG_CODE, name, words);
}

#endif
