/* The CUDA runtime's memory and miscellaneous functions: a thin layer over memory/. */
#include "core/vgpu.h"
#include <string.h>
#include "cuda/device.h"
#include "memory/memory.h"
#include "cuda/streams.h"

#define INVALID fail(ERROR_INVALID_VALUE)

#define NEEDS_DEVICE() do { if (!visible_device_count()) return fail(ERROR_NO_DEVICE); } while (0)

EXPORT int cudaMalloc(void **address, size_t bytes) {
    NEEDS_DEVICE();
    return fail(device_malloc(address, bytes, "cudaMalloc"));
}

EXPORT int cudaFree(void *address) {
    NEEDS_DEVICE();
    lock();
    device_state(current_device); /* cudaFree(NULL) is the usual way to create the context */
    unlock();
    return fail(device_free(address, "cudaFree"));
}

EXPORT int cudaMallocManaged(void **address, size_t bytes, unsigned flags UNUSED) {
    NEEDS_DEVICE();
    return fail(managed_malloc(address, bytes));
}
/* CUDA 12 and 13 differ in the arguments behind these, which do not matter here. */
EXPORT int cudaMemPrefetchAsync(const void *address, size_t bytes UNUSED) { return fail(managed_advice(address)); }
EXPORT int cudaMemAdvise(const void *address, size_t bytes UNUSED) { return fail(managed_advice(address)); }
EXPORT int cudaHostAlloc(void **address, size_t bytes, unsigned flags UNUSED) {
    NEEDS_DEVICE();
    return fail(pinned_malloc(address, bytes));
}
EXPORT int cudaMallocHost(void **address, size_t bytes) { NEEDS_DEVICE(); return fail(pinned_malloc(address, bytes)); }
EXPORT int cudaFreeHost(void *address) { return fail(pinned_free(address)); }
EXPORT int cudaHostRegister(void *address, size_t bytes, unsigned flags UNUSED) {
    NEEDS_DEVICE();
    return fail(pinned_register(address, bytes));
}
EXPORT int cudaHostUnregister(void *address) { return fail(pinned_unregister(address)); }
EXPORT int cudaHostGetDevicePointer(void **device, void *host, unsigned flags UNUSED) {
    NEEDS(device);
    *device = host; /* unified addresses */
    return is_pinned(host) ? SUCCESS : fail(ERROR_INVALID_VALUE);
}
EXPORT int cudaHostGetFlags(unsigned *flags, void *host) {
    NEEDS(flags);
    *flags = 0;
    return is_pinned(host) ? SUCCESS : fail(ERROR_INVALID_VALUE);
}

/* ---- memory pools ------------------------------------------------------------------------------------------------ */

EXPORT int cudaMallocAsync(void **address, size_t bytes, void *stream UNUSED) {
    NEEDS_DEVICE();
    return fail(pool_malloc(address, bytes, "cudaMallocAsync"));
}
EXPORT int cudaMallocFromPoolAsync(void **address, size_t bytes, void *pool UNUSED, void *stream UNUSED) {
    NEEDS_DEVICE();
    return fail(pool_malloc(address, bytes, "cudaMallocFromPoolAsync"));
}
EXPORT int cudaFreeAsync(void *address, void *stream UNUSED) { return fail(device_free(address, "cudaFreeAsync")); }
EXPORT int cudaDeviceGetDefaultMemPool(void **pool, int device) {
    NEEDS(pool);
    if (physical_index(device) < 0) return fail(ERROR_INVALID_DEVICE);
    *pool = pool_handle(device);
    return SUCCESS;
}
EXPORT int cudaDeviceGetMemPool(void **pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }
EXPORT int cudaMemPoolTrimTo(void *pool, size_t keep) { return fail(pool_trim(pool, keep)); }
EXPORT int cudaMemPoolSetAttribute(void *pool, int attribute, void *value) {
    return fail(pool_attribute(pool, attribute, value, true));
}
EXPORT int cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
    return fail(pool_attribute(pool, attribute, value, false));
}
EXPORT int cudaMemPoolSetAccess(void *pool UNUSED, const void *descriptions UNUSED, size_t count UNUSED) {
    return SUCCESS; /* peers reach each other */
}

/* Graph memory nodes are not modelled, so they hold nothing. */
EXPORT int cudaDeviceGetGraphMemAttribute(int device UNUSED, int attribute UNUSED, void *value) {
    NEEDS(value);
    *(uint64_t *)value = 0;
    return SUCCESS;
}
EXPORT int cudaDeviceSetGraphMemAttribute(int device UNUSED, int attribute UNUSED, void *value UNUSED) {
    return SUCCESS; /* a reset of peaks */
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static int copy_on(void *stream, void *to, const void *from, size_t bytes, int kind, const char *function) {
    Stream *s = stream_of(stream);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    note_captured_work(s);
    note_copy(to, from, bytes, s, false, function);
    return fail(copy_memory(to, from, bytes, kind, function));
}

EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    NEEDS_DEVICE();
    host_synchronizes(current_device);
    note_copy(to, from, bytes, NULL, true, "cudaMemcpy");
    return fail(copy_memory(to, from, bytes, kind, "cudaMemcpy"));
}
EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    return copy_on(stream, to, from, bytes, kind, "cudaMemcpyAsync");
}
EXPORT int cudaMemcpyPeerAsync(void *to, int to_device UNUSED, const void *from, int from_device UNUSED, size_t bytes,
                               void *stream) {
    return copy_on(stream, to, from, bytes, DEVICE_TO_DEVICE, "cudaMemcpyPeerAsync");
}
EXPORT int cudaMemcpyPeer(void *to, int to_device UNUSED, const void *from, int from_device UNUSED, size_t bytes) {
    note_copy(to, from, bytes, NULL, true, "cudaMemcpyPeer");
    return fail(copy_memory(to, from, bytes, DEVICE_TO_DEVICE, "cudaMemcpyPeer"));
}

EXPORT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t height, int kind, void *stream) {
    if (width > to_pitch || width > from_pitch) return fail(ERROR_INVALID_VALUE);
    int error = SUCCESS;
    for (size_t row = 0; row < height && !error; row++)
        error = copy_on(stream, (char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind,
                        "cudaMemcpy2DAsync");
    return error;
}

EXPORT int cudaMemset(void *to, int value, size_t bytes) {
    note_memset(bytes, NULL, "cudaMemset");
    return fail(set_memory(to, value, 1, bytes));
}
EXPORT int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
    Stream *s = stream_of(stream);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    note_captured_work(s);
    note_memset(bytes, s, "cudaMemsetAsync");
    return fail(set_memory(to, value, 1, bytes));
}

/* ---- pointers ---------------------------------------------------------------------------------------------------- */

/* CUDA 13 has more fields behind these; they are reserved. type: 0 plain host memory, 1 pinned, 2 device, 3 managed. */
typedef struct { int type, device; void *device_pointer, *host_pointer; } PointerAttributes;

EXPORT int cudaPointerGetAttributes(PointerAttributes *attributes, const void *address) {
    NEEDS(attributes);
    NEEDS_DEVICE();
    int device = device_of(address);
    bool pinned = device < 0 && is_pinned(address), managed = device >= 0 && is_managed(address);
    attributes->type = managed ? 3 : device >= 0 ? 2 : pinned ? 1 : 0;
    attributes->device = device >= 0 ? device : pinned ? current_device : -2;
    attributes->device_pointer = device >= 0 || pinned ? (void *)address : NULL;
    attributes->host_pointer = pinned || managed || device < 0 ? (void *)address : NULL;
    return SUCCESS;
}

EXPORT int cudaProfilerStart(void) { return SUCCESS; } /* no profiler is attached, as on most machines */
EXPORT int cudaProfilerStop(void) { return SUCCESS; }

/* Code of the driver, not of the runtime: see driver.c. */
extern void *driver_function(const char *name);

static int entry_point(const char *name, void **function, int *status) {
    NEEDS(name, function);
    *function = driver_function(name);
    if (status) *status = *function ? 0 : 1; /* cudaDriverEntryPointSymbolNotFound */
    return SUCCESS;
}
EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version UNUSED,
                                            unsigned long long flags UNUSED, int *status) {
    return entry_point(name, function, status);
}
EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags UNUSED, int *status) {
    return entry_point(name, function, status);
}
