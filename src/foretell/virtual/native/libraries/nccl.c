/* NCCL for one process: communicators of one rank, or of several local GPUs. */
#include "core/vgpu.h"
#include <stdlib.h>
#include <string.h>

typedef struct { int rank, num_ranks, device; } Communicator;
typedef struct { char bytes[128]; } UniqueId;
#define NCCL_INVALID_ARGUMENT 4
#define INVALID NCCL_INVALID_ARGUMENT

static int new_communicator(void **communicator, int num_ranks, int rank) {
    NEEDS(communicator);
    if (num_ranks < 1 || rank < 0 || rank >= num_ranks) return NCCL_INVALID_ARGUMENT;
    use_library(LIBRARY_NCCL);
    Communicator *c = allocate(sizeof *c);
    *c = (Communicator){rank, num_ranks, current_device};
    *communicator = c;
    return 0;
}

EXPORT int ncclGetVersion(int *version) {
    NEEDS(version);
    int (*real)(int *) = (int (*)(int *))real_function("libnccl.so.", "ncclGetVersion");
    if (real && real != ncclGetVersion) return real(version);
    *version = 22105;
    return 0;
}
EXPORT int ncclGetUniqueId(UniqueId *id) { NEEDS(id); memset(id, 7, sizeof *id); return 0; }
EXPORT int ncclCommInitRank(void **communicator, int num_ranks, UniqueId id UNUSED, int rank) {
    return new_communicator(communicator, num_ranks, rank);
}
EXPORT int ncclCommInitRankConfig(void **communicator, int num_ranks, UniqueId id UNUSED, int rank,
                                  void *config UNUSED) {
    return new_communicator(communicator, num_ranks, rank);
}
EXPORT int ncclCommInitRankScalable(void **communicator, int num_ranks, int rank, int num_ids UNUSED, void *ids UNUSED,
                                    void *config UNUSED) {
    return new_communicator(communicator, num_ranks, rank);
}
EXPORT int ncclCommInitAll(void **communicators, int count, const int *devices) {
    NEEDS(communicators);
    if (count < 1 || count > MAX_DEVICES) return NCCL_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        new_communicator(&communicators[i], count, i);
        ((Communicator *)communicators[i])->device = devices ? devices[i] : i;
    }
    return 0;
}
EXPORT int ncclCommSplit(Communicator *from, int color, int key UNUSED, void **communicator, void *config UNUSED) {
    NEEDS(from, communicator);
    if (color < 0) { *communicator = NULL; return 0; } /* NCCL_SPLIT_NOCOLOR */
    if (from->num_ranks > 1) return unimplemented("ncclCommSplit (of several ranks)", 5);
    return new_communicator(communicator, 1, 0);
}
EXPORT int ncclCommDestroy(void *communicator) { free(communicator); return 0; }
EXPORT int ncclCommAbort(void *communicator) { free(communicator); return 0; }
EXPORT int ncclCommFinalize(void *communicator UNUSED) { return 0; }
EXPORT int ncclCommCount(Communicator *c, int *count) { NEEDS(c, count); *count = c->num_ranks; return 0; }
EXPORT int ncclCommUserRank(Communicator *c, int *rank) { NEEDS(c, rank); *rank = c->rank; return 0; }
EXPORT int ncclCommCuDevice(Communicator *c, int *device) { NEEDS(c, device); *device = c->device; return 0; }
EXPORT int ncclCommGetAsyncError(void *c UNUSED, int *error) { NEEDS(error); *error = 0; return 0; }
EXPORT int ncclCommRegister(void *c UNUSED, void *buffer UNUSED, size_t bytes UNUSED, void **handle) {
    NEEDS(handle);
    *handle = allocate(8);
    return 0;
}
EXPORT int ncclCommDeregister(void *c UNUSED, void *handle) { free(handle); return 0; }
EXPORT int ncclRedOpCreatePreMulSum(int *op, void *scalar UNUSED, int type UNUSED, int residence UNUSED,
                                    void *c UNUSED) {
    NEEDS(op);
    *op = 6;
    return 0;
}
EXPORT int ncclRedOpDestroy(int op UNUSED, void *c UNUSED) { return 0; }
EXPORT int ncclGroupStart(void) { return 0; }
EXPORT int ncclGroupEnd(void) { return 0; }
EXPORT const char *ncclGetErrorString(int error) {
    return error ? "not supported by foretell's virtual GPU" : "no error";
}
EXPORT const char *ncclGetLastError(void *c UNUSED) { return ""; }

static const unsigned char TYPE_BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* ncclDataType_t */

static bool is_type(int type) { return type >= 0 && type < (int)sizeof TYPE_BYTES; }

static void communicates(const char *name, int64_t operation, size_t count, int type, const Communicator *c) {
    count_launch();
    log_collective(name, (CollectiveRecord){
        .operation = operation, .count = (int64_t)count, .data_type = type,
        .bytes = (int64_t)(count * TYPE_BYTES[type]), .num_ranks = c->num_ranks, .device = current_device});
}

/* Among one rank every collective is a copy of its own data; what is known stays known. */
static int collective(const char *name, int64_t operation, const void *from, void *to, size_t count, int type,
                      const Communicator *c) {
    NEEDS(c);
    if (!is_type(type)) return NCCL_INVALID_ARGUMENT;
    size_t bytes = count * TYPE_BYTES[type];
    bool was_known = bytes && is_known((uintptr_t)from, bytes);
    if (from != to) copy_memory(to, from, bytes, DEVICE_TO_DEVICE, name);
    communicates(name, operation, count, type, c);
    /* the call itself is a launch */
    if (was_known && !is_known((uintptr_t)to, bytes)) know((uintptr_t)to, bytes, false);
    return 0;
}
/* They differ in what stands between the type and the communicator: an operator, a root, both or nothing. */
#define COLLECTIVE(name, operation, ...) \
    EXPORT int name(const void *from, void *to, size_t count, int type, ##__VA_ARGS__, const Communicator *c) { \
        return collective(#name, operation, from, to, count, type, c); \
    }
COLLECTIVE(ncclAllReduce, OPERATION_ALL_REDUCE, int operator UNUSED)
COLLECTIVE(ncclBroadcast, OPERATION_BROADCAST, int root UNUSED)
COLLECTIVE(ncclReduce, OPERATION_REDUCE, int operator UNUSED, int root UNUSED)
COLLECTIVE(ncclReduceScatter, OPERATION_REDUCE_SCATTER, int operator UNUSED)
COLLECTIVE(ncclAllGather, OPERATION_ALL_GATHER)
COLLECTIVE(ncclAlltoAll, OPERATION_ALL_TO_ALL)
COLLECTIVE(ncclGather, OPERATION_GATHER, int root UNUSED)
EXPORT int ncclBcast(void *buffer, size_t count, int type, int root UNUSED, const Communicator *c) {
    return collective("ncclBcast", OPERATION_BROADCAST, buffer, buffer, count, type, c);
}
EXPORT int ncclSend(const void *from UNUSED, size_t count, int type, int peer UNUSED, const Communicator *c) {
    NEEDS(c);
    if (!is_type(type)) return NCCL_INVALID_ARGUMENT;
    communicates("ncclSend", OPERATION_SEND, count, type, c);
    return 0;
}
EXPORT int ncclRecv(void *to, size_t count, int type, int peer UNUSED, const Communicator *c) {
    NEEDS(c);
    if (!is_type(type)) return NCCL_INVALID_ARGUMENT;
    forget((uintptr_t)to, count * TYPE_BYTES[type]);
    communicates("ncclRecv", OPERATION_RECEIVE, count, type, c);
    return 0;
}
