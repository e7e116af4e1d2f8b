/* The virtual GPU: what its files share. One process-wide state behind one lock; no CUDA headers, so that one binary
 * serves CUDA 12 and CUDA 13. Types and codes are those of NVIDIA's public headers, under our own names. */
#ifndef FORETELL_VGPU_H
#define FORETELL_VGPU_H

#define _GNU_SOURCE /* dl_iterate_phdr, madvise */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))

#define MAX_DEVICES 16
#define GRANULARITY ((size_t)2 << 20)  /* cudaMalloc and cuMemCreate hand out memory in pages of this size */
#define SMALL_COPY ((size_t)64 << 10)  /* copies up to this size are always real */

/* CUDA's error codes; the runtime and the driver use the same numbers. */
enum {
    SUCCESS = 0, ERROR_INVALID_VALUE = 1, ERROR_OUT_OF_MEMORY = 2, ERROR_NOT_INITIALIZED = 3,
    ERROR_INVALID_CONFIGURATION = 9, ERROR_INVALID_SYMBOL = 13, ERROR_NO_DEVICE = 100, ERROR_INVALID_DEVICE = 101,
    ERROR_NO_KERNEL_IMAGE = 209, ERROR_INVALID_HANDLE = 400, ERROR_NOT_FOUND = 500, ERROR_NOT_READY = 600,
    ERROR_PEER_ALREADY_ENABLED = 704, ERROR_NOT_PERMITTED = 800, ERROR_NOT_SUPPORTED = 801,
    ERROR_CAPTURE_UNMATCHED = 903,
};

/* First in a function: ends it with the library's own code, INVALID in its file, if one of these pointers is null. */
#define NEEDS(...) do { \
    const void *const needed[] = {__VA_ARGS__}; \
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) \
        if (!needed[i]) return INVALID; \
} while (0)

/* ---- memory of our own (allocate.c): there always is some, or the process ends with a message ---------------- */

void *allocate(size_t bytes);                                                   /* zeroed; free() returns it */
void *with_room(void *items, size_t item_bytes, size_t count, size_t *room);     /* for one more item */
char *copied(const char *text);

/* ---- the card (config.c) ------------------------------------------------------------------------------------- */

typedef struct {
    char name[256];
    int64_t count, total, context, major, minor, sms, shared_per_block, shared_per_block_optin, shared_per_sm,
        registers_per_sm, threads_per_sm, blocks_per_sm, l2, bus_bits, clock_khz, memory_clock_khz, pci_device_id,
        cublas_library, cudnn_library, nccl_library, batch_norm_library, events_late, workspaces, arena;
} Card;
enum { WORKSPACES_ASKED, WORKSPACES_NONE, WORKSPACES_NEXT }; /* which engine of cuDNN's a convolution gets */

const Card *card(void);
/* Cards in the machine, and those CUDA_VISIBLE_DEVICES leaves to this process (read once, at the first CUDA call). */
EXPORT int foretell_physical_device_count(void);
int visible_device_count(void);
int physical_index(int device);

/* ---- locking and errors (state.c) --------------------------------------------------------------------------- */

void lock(void);
void unlock(void);
/* Remembers the error for cudaGetLastError and returns it. */
int fail(int error);
extern __thread int current_device;
extern __thread int last_error;

enum Library { LIBRARY_CUBLAS, LIBRARY_CUDNN, LIBRARY_NCCL, LIBRARY_BATCH_NORM, NUM_LIBRARIES };

typedef struct {
    bool has_context;
    size_t used;           /* bytes handed out: cudaMalloc, cuMemCreate, memory pools */
    size_t peak_used;
    uint32_t libraries;    /* bit set: those whose code has been charged */
    size_t library_bytes;
    uint64_t synced;       /* launch number up to which the host knows that everything is done */
} Device;

Device *device_state(int device);      /* creates the context on first use, as the runtime does */
bool has_context(int device);
size_t device_free_bytes(int device);  /* call with the lock held */
bool charge(int device, size_t bytes); /* call with the lock held; false: the card is full */
void discharge(int device, size_t bytes);
void use_library(enum Library library);

/* ---- device memory (memory/) ------------------------------------------------------------------------ */

int device_malloc(void **address, size_t bytes, const char *function);
int device_free(void *address, const char *function);
int device_of(const void *address);    /* -1: not device memory */
bool range_of(const void *address, uintptr_t *base, size_t *bytes);
bool is_pinned(const void *address);

enum CopyKind { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, COPY_DEFAULT };
int copy_memory(void *to, const void *from, size_t bytes, int kind, const char *function);
/* what the Python side says that a count read back now is; false: it says nothing */
bool answered_read(int64_t *value);
int set_memory(void *to, int value, size_t value_bytes, size_t bytes);

void know(uintptr_t address, size_t bytes, bool is_confirmed);  /* the bytes there are what a real GPU would have */
void know_for_a_while(uintptr_t address, size_t bytes);
extern __thread int group_depth; /* of NCCL's groups (libraries/nccl.c) */
void forget(uintptr_t address, size_t bytes);
bool is_known(uintptr_t address, size_t bytes);
size_t known_prefix(uintptr_t address, size_t bytes, bool *known); /* length of the leading run, known or unknown */

/* ---- streams, events, launches (streams.c) ----------------------------------------------------------------- */

extern uint64_t launches;  /* kernels and library calls so far, in all streams: the virtual GPU's clock */
extern __thread bool has_launched; /* this thread, anything */
void host_synchronizes(int device);

/* ---- log (log.c) --------------------------------------------------------------------------------------------- */

#include "core/log_kinds.h"

bool is_logging(void);
unsigned log_number(void); /* of this process: a fork has a log of its own */
const char *log_folder(void);             /* the capture folder; NULL: there is none */
void count_launch(void);                 /* a kernel or a library call: the clock goes on */
/* one that computes and of which only the name is of interest: counted and logged */
void library_call(const char *function);
void workspace_given(const void *address, int64_t bytes); /* of PyTorch's memory, to a library */

/* ---- functions that are not there (unimplemented.c) ------------------------------------------------------------ */

/* Says on stderr, once per function, that it does not exist here; counted for the result. Returns `code`. */
int unimplemented(const char *function, int code);
/* Says the same of a library, or program, that brings its own CUDA runtime; `caller` is an address in it. */
void static_runtime(const void *caller);

/* ---- the real libraries, idle beside us (real_libraries.c) ------------------------------------------------------ */

/* Finds `function` in the real library that the process has loaded; NULL when there is none. */
void *real_function(const char *library_prefix, const char *function);

#endif
