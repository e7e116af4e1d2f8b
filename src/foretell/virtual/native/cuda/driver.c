/* The CUDA driver API. Programs link to it, load it by name (libcuda.so.1 is our SONAME), or ask for entry points by
 * base name: the table at the end answers those, so that a base name means the version programs expect
 * (cuMemGetAddressRange is _v2). */
#include "core/vgpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cuda/device.h"
#include "cuda/kernels.h"
#include "memory/memory.h"
#include "cuda/streams.h"

#define INVALID ERROR_INVALID_VALUE

static char contexts[MAX_DEVICES]; /* a context is an address in here */
static void *context_of(int device) { return &contexts[device]; }
static int device_of_context(const void *context) {
    const char *at = context;
    return at >= contexts && at < contexts + MAX_DEVICES ? (int)(at - contexts) : -1;
}

/* ---- devices and contexts ---------------------------------------------------------------------------------------- */

EXPORT int cuInit(unsigned flags UNUSED) { return visible_device_count() ? SUCCESS : ERROR_NO_DEVICE; }
EXPORT int cuDriverGetVersion(int *version) { NEEDS(version); *version = runtime_version(); return SUCCESS; }
EXPORT int cuDeviceGetCount(int *count) { NEEDS(count); *count = visible_device_count(); return SUCCESS; }
EXPORT int cuDeviceGet(int *device, int ordinal) {
    NEEDS(device);
    *device = ordinal;
    return physical_index(ordinal) < 0 ? ERROR_INVALID_DEVICE : SUCCESS;
}
EXPORT int cuDeviceGetName(char *name, int length, int device) {
    NEEDS(name);
    if (physical_index(device) < 0) return ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", card()->name);
    return SUCCESS;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    NEEDS(bytes);
    *bytes = (size_t)card()->total;
    return physical_index(device) < 0 ? ERROR_INVALID_DEVICE : SUCCESS;
}
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return device_attribute(value, attribute, device);
}
EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    NEEDS(uuid);
    if (physical_index(device) < 0) return ERROR_INVALID_DEVICE;
    device_uuid(device, uuid);
    return SUCCESS;
}
EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
EXPORT int cuDeviceGetPCIBusId(char *id, int length, int device) {
    NEEDS(id);
    if (physical_index(device) < 0) return ERROR_INVALID_DEVICE;
    snprintf(id, (size_t)length, "0000:%02X:00.0", physical_index(device) + 1);
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    NEEDS(context);
    if (physical_index(device) < 0) return ERROR_INVALID_DEVICE;
    lock();
    device_state(device);
    unlock();
    *context = context_of(device);
    return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device UNUSED) { return SUCCESS; } /* the runtime keeps it alive */
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
    NEEDS(flags, is_active);
    if (physical_index(device) < 0) return ERROR_INVALID_DEVICE;
    *flags = 0;
    *is_active = has_context(device);
    return SUCCESS;
}
EXPORT int cuCtxGetCurrent(void **context) {
    NEEDS(context);
    *context = has_context(current_device) ? context_of(current_device) : NULL;
    return SUCCESS;
}
EXPORT int cuCtxSetCurrent(void *context) {
    int device = device_of_context(context);
    if (context && device < 0) return ERROR_INVALID_VALUE;
    if (context) current_device = device;
    return SUCCESS;
}
/* cuDNN's run-time compiler pushes and pops contexts; here a context is a device, so the stack is one of devices. */
static __thread int pushed_devices[16], num_pushed;
EXPORT int cuCtxPushCurrent_v2(void *context) {
    if (device_of_context(context) < 0 || num_pushed == 16) return ERROR_INVALID_VALUE;
    pushed_devices[num_pushed++] = current_device;
    return cuCtxSetCurrent(context);
}
EXPORT int cuCtxPopCurrent_v2(void **context) {
    if (!num_pushed) return ERROR_INVALID_VALUE;
    if (context) *context = context_of(current_device);
    current_device = pushed_devices[--num_pushed];
    return SUCCESS;
}
EXPORT int cuCtxPushCurrent(void *context) { return cuCtxPushCurrent_v2(context); }
EXPORT int cuCtxPopCurrent(void **context) { return cuCtxPopCurrent_v2(context); }
EXPORT int cuDevicePrimaryCtxRelease(int device) { return cuDevicePrimaryCtxRelease_v2(device); }
EXPORT int cuDevicePrimaryCtxReset(int device UNUSED) {
    return unimplemented("cuDevicePrimaryCtxReset", ERROR_NOT_SUPPORTED);
}
EXPORT int cuCtxGetDevice(int *device) { NEEDS(device); *device = current_device; return SUCCESS; }
EXPORT int cuCtxSynchronize(void) { host_synchronizes(current_device); return SUCCESS; }
/* Limits (stack, printf buffer, ...) change the context by at most a few MiB, which its interval holds. */
static size_t limits[16];
EXPORT int cuCtxSetLimit(int limit, size_t value) {
    if (limit < 0 || limit > 15) return ERROR_INVALID_VALUE;
    limits[limit] = value;
    return SUCCESS;
}
EXPORT int cuCtxGetLimit(size_t *value, int limit) {
    NEEDS(value);
    if (limit < 0 || limit > 15) return ERROR_INVALID_VALUE;
    *value = limits[limit];
    return SUCCESS;
}

EXPORT int cuGetErrorString(int error, const char **text) { NEEDS(text); *text = error_text(error); return SUCCESS; }
EXPORT int cuGetErrorName(int error, const char **name) { NEEDS(name); *name = error_name(error); return SUCCESS; }

/* The driver's log never has anything to say. */
EXPORT int cuLogsRegisterCallback(void *callback UNUSED, void *data UNUSED, void **handle) {
    NEEDS(handle);
    static char one;
    *handle = &one;
    return SUCCESS;
}
EXPORT int cuLogsUnregisterCallback(void *handle UNUSED) { return SUCCESS; }

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* CUmemAllocationProp and CUmemAccessDesc: type, handle types, {location type, device}. */
typedef struct { int type, handle_types, location_type, device; } AllocationProperties;

EXPORT int cuMemGetAllocationGranularity(size_t *granularity, const AllocationProperties *properties UNUSED,
                                         int option UNUSED) {
    NEEDS(granularity);
    *granularity = GRANULARITY;
    return SUCCESS;
}
EXPORT int cuMemAddressReserve(uintptr_t *address, size_t bytes, size_t alignment, uintptr_t hint UNUSED,
                               unsigned long long flags UNUSED) {
    NEEDS(address);
    return address_reserve(address, bytes, alignment);
}
EXPORT int cuMemAddressFree(uintptr_t address, size_t bytes) { return address_free(address, bytes); }
EXPORT int cuMemCreate(uint64_t *handle, size_t bytes, const AllocationProperties *properties,
                       unsigned long long flags UNUSED) {
    NEEDS(handle, properties);
    if (properties->location_type != 1) return unimplemented("cuMemCreate (on the host)", ERROR_NOT_SUPPORTED);
    if (physical_index(properties->device) < 0) return ERROR_INVALID_DEVICE;
    return physical_create(handle, bytes, properties->device);
}
EXPORT int cuMemRelease(uint64_t handle) { return physical_release(handle); }
EXPORT int cuMemMap(uintptr_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags UNUSED) {
    /* as in the driver, the offset must be zero */
    return offset ? ERROR_INVALID_VALUE : address_map(address, bytes, handle);
}
EXPORT int cuMemUnmap(uintptr_t address, size_t bytes) { return address_unmap(address, bytes); }
EXPORT int cuMemSetAccess(uintptr_t address UNUSED, size_t bytes UNUSED, const void *descriptions UNUSED,
                          size_t count UNUSED) {
    return SUCCESS;
}
EXPORT int cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
    NEEDS(handle);
    return physical_of((uintptr_t)address, handle);
}
EXPORT int cuMemGetAddressRange_v2(uintptr_t *base, size_t *bytes, uintptr_t address) {
    uintptr_t start;
    size_t length;
    if (!range_of((void *)address, &start, &length)) return ERROR_NOT_FOUND;
    if (base) *base = start;
    if (bytes) *bytes = length;
    return SUCCESS;
}
EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    NEEDS(free_bytes, total);
    lock();
    *free_bytes = device_free_bytes(current_device);
    *total = (size_t)card()->total;
    unlock();
    return SUCCESS;
}
EXPORT int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
    return device_malloc((void **)address, bytes, "cuMemAlloc");
}
EXPORT int cuMemFree_v2(uintptr_t address) { return device_free((void *)address, "cuMemFree"); }
EXPORT int cuMemAllocHost_v2(void **address, size_t bytes) { return pinned_malloc(address, bytes); }
EXPORT int cuMemFreeHost(void *address) { return pinned_free(address); }
EXPORT int cuMemcpyHtoD_v2(uintptr_t to, const void *from, size_t bytes) {
    note_copy((void *)to, from, bytes, NULL, true, "cuMemcpyHtoD");
    return copy_memory((void *)to, from, bytes, HOST_TO_DEVICE, "cuMemcpyHtoD");
}
EXPORT int cuMemcpyDtoH_v2(void *to, uintptr_t from, size_t bytes) {
    note_copy(to, (void *)from, bytes, NULL, true, "cuMemcpyDtoH");
    return copy_memory(to, (void *)from, bytes, DEVICE_TO_HOST, "cuMemcpyDtoH");
}
EXPORT int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *stream UNUSED) {
    return cuMemcpyHtoD_v2(to, from, bytes);
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *stream UNUSED) {
    return cuMemcpyDtoH_v2(to, from, bytes);
}
EXPORT int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *stream) {
    note_copy((void *)to, (void *)from, bytes, stream_of(stream), false, "cuMemcpyDtoDAsync");
    return copy_memory((void *)to, (void *)from, bytes, DEVICE_TO_DEVICE, "cuMemcpyDtoDAsync");
}
EXPORT int cuMemcpyAsync(uintptr_t to, uintptr_t from, size_t bytes, void *stream) {
    note_copy((void *)to, (void *)from, bytes, stream_of(stream), false, "cuMemcpyAsync");
    return copy_memory((void *)to, (void *)from, bytes, COPY_DEFAULT, "cuMemcpyAsync");
}
EXPORT int cuMemsetD8Async(uintptr_t to, unsigned char value, size_t count, void *stream) {
    note_memset(count, stream_of(stream), "cuMemsetD8Async");
    return set_memory((void *)to, value, 1, count);
}
EXPORT int cuMemsetD32Async(uintptr_t to, unsigned value, size_t count, void *stream) {
    note_memset(4 * count, stream_of(stream), "cuMemsetD32Async");
    return set_memory((void *)to, (int)value, 4, 4 * count);
}

/* CUpointer_attribute: 1 context, 2 memory type (1 host, 2 device), 3 device pointer, 4 host pointer, 6 sync, 7
 * buffer id, 8 managed, 9 device ordinal, 11 range start, 12 range size, 13 mapped. */
EXPORT int cuPointerGetAttribute(void *data, int attribute, uintptr_t address) {
    NEEDS(data);
    int device = device_of((void *)address);
    bool pinned = device < 0 && is_pinned((void *)address);
    if (device < 0 && !pinned) return ERROR_INVALID_VALUE;
    uintptr_t start = address;
    size_t bytes = 0;
    range_of((void *)address, &start, &bytes);
    switch (attribute) {
    case 1: *(void **)data = context_of(device < 0 ? current_device : device); return SUCCESS;
    case 2: *(unsigned *)data = pinned ? 1 : 2; return SUCCESS;
    case 3: *(uintptr_t *)data = address; return SUCCESS;
    case 4: *(void **)data = pinned ? (void *)address : NULL; return pinned ? SUCCESS : ERROR_INVALID_VALUE;
    case 6: return SUCCESS;
    case 7: *(unsigned long long *)data = start / GRANULARITY; return SUCCESS;
    case 8: *(bool *)data = is_managed((void *)address); return SUCCESS;
    case 9: *(int *)data = device < 0 ? current_device : device; return SUCCESS;
    case 11: *(uintptr_t *)data = start; return SUCCESS;
    case 12: *(size_t *)data = bytes; return SUCCESS;
    case 13: *(bool *)data = true; return SUCCESS;
    default: return unimplemented("cuPointerGetAttribute (this attribute)", ERROR_NOT_SUPPORTED);
    }
}
EXPORT int cuPointerGetAttributes(unsigned count, int *attributes, void **data, uintptr_t address) {
    NEEDS(attributes, data);
    /* as in the driver: an unknown pointer is no error here, its attributes are zero */
    for (unsigned i = 0; i < count; i++) {
        if (attributes[i] == 2 && data[i]) *(unsigned *)data[i] = 0;
        cuPointerGetAttribute(data[i], attributes[i], address);
    }
    return SUCCESS;
}

/* ---- modules and launches ---------------------------------------------------------------------------------------- */

static int new_module(void **module) { NEEDS(module); *module = allocate(16); return SUCCESS; }
EXPORT int cuModuleLoadData(void **module, const void *image UNUSED) { return new_module(module); }
EXPORT int cuModuleLoadDataEx(void **module, const void *image UNUSED, unsigned n UNUSED, int *options UNUSED,
                              void **values UNUSED) {
    return new_module(module);
}
EXPORT int cuModuleLoad(void **module, const char *file UNUSED) { return new_module(module); }
EXPORT int cuModuleLoadFatBinary(void **module, const void *image UNUSED) { return new_module(module); }
EXPORT int cuLibraryLoadFromFile(void **library, const char *file UNUSED, int *jit UNUSED, void **jit_values UNUSED,
                                 unsigned num_jit UNUSED, int *options UNUSED, void **values UNUSED,
                                 unsigned n UNUSED) {
    return new_module(library);
}
EXPORT int cuModuleUnload(void *module) { free(module); return SUCCESS; }
EXPORT int cuModuleGetFunction(void **function, void *module UNUSED, const char *name) {
    NEEDS(function, name);
    *function = new_kernel(name);
    return SUCCESS;
}
EXPORT int cuLibraryLoadData(void **library, const void *code UNUSED, int *jit UNUSED, void **jit_values UNUSED,
                             unsigned num_jit UNUSED, int *options UNUSED, void **values UNUSED, unsigned n UNUSED) {
    return new_module(library);
}
EXPORT int cuLibraryUnload(void *library) { free(library); return SUCCESS; }
EXPORT int cuLibraryGetKernel(void **kernel, void *library UNUSED, const char *name) {
    NEEDS(kernel, name);
    *kernel = new_kernel(name);
    return SUCCESS;
}
EXPORT int cuKernelGetFunction(void **function, void *kernel) { NEEDS(function); *function = kernel; return SUCCESS; }
EXPORT int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device UNUSED) {
    return kernel_attribute(kernel_of(kernel), attribute, value);
}
EXPORT int cuKernelSetAttribute(int attribute, int value, void *kernel, int device UNUSED) {
    return set_kernel_attribute(kernel_of(kernel), attribute, value);
}
EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function) {
    return kernel_attribute(kernel_of(function), attribute, value);
}
EXPORT int cuFuncSetAttribute(void *function, int attribute, int value) {
    return set_kernel_attribute(kernel_of(function), attribute, value);
}
EXPORT int cuFuncSetCacheConfig(void *function UNUSED, int config UNUSED) { return SUCCESS; }
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function UNUSED, int threads, size_t shared) {
    NEEDS(blocks);
    *blocks = resident_blocks(threads, shared);
    return SUCCESS;
}

EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **arguments, void **extra UNUSED) {
    return launch_kernel(kernel_of(function), (Dim3){gx, gy, gz}, (Dim3){bx, by, bz}, arguments, shared, stream);
}
EXPORT int cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                     unsigned bz, unsigned shared, void *stream, void **arguments) {
    return launch_kernel(kernel_of(function), (Dim3){gx, gy, gz}, (Dim3){bx, by, bz}, arguments, shared, stream);
}
typedef struct {
    Dim3 grid, block;
    unsigned shared;
    void *stream, *attributes;
    unsigned num_attributes;
} DriverLaunchConfig;
EXPORT int cuLaunchKernelEx(const DriverLaunchConfig *config, void *function, void **arguments, void **extra UNUSED) {
    NEEDS(config);
    return launch_kernel(kernel_of(function), config->grid, config->block, arguments, config->shared, config->stream);
}

/* The tensor map is an opaque 128-byte description that only kernels read. */
EXPORT int cuTensorMapEncodeTiled(void *map, ...) { NEEDS(map); memset(map, 0, 128); return SUCCESS; }

/* ---- streams and events ------------------------------------------------------------------------------------------ */

EXPORT int cuStreamGetCtx(void *stream, void **context) {
    NEEDS(context);
    Stream *s = stream_of(stream);
    if (!s) return ERROR_INVALID_HANDLE;
    *context = context_of(stream_device(s));
    return SUCCESS;
}

/* A CUDA runtime that is linked into a library asks for private tables here. There are none, and it says so and
 * stops; imitating them is out of bounds. */
EXPORT int cuGetExportTable(const void **table, const void *id UNUSED) {
    NEEDS(table);
    *table = NULL;
    static_runtime(__builtin_return_address(0));
    return ERROR_NOT_FOUND;
}

/* ---- entry points by name ---------------------------------------------------------------------------------------- */

extern int cudaStreamCreateWithPriority(void **, unsigned, int), cudaStreamSynchronize(void *), cudaStreamQuery(void *),
    cudaStreamDestroy(void *), cudaStreamIsCapturing(void *, int *), cudaStreamWaitEvent(void *, void *, unsigned),
    cudaEventCreateWithFlags(void **, unsigned), cudaEventRecord(void *, void *), cudaEventQuery(void *),
    cudaEventSynchronize(void *), cudaEventDestroy(void *), cudaEventElapsedTime(float *, void *, void *);

/* Same arguments, same codes as the runtime's. */
EXPORT int cuStreamCreateWithPriority(void **s, unsigned flags, int priority) {
    return cudaStreamCreateWithPriority(s, flags, priority);
}
EXPORT int cuStreamCreate(void **s, unsigned flags) { return cudaStreamCreateWithPriority(s, flags, 0); }
EXPORT int cuStreamDestroy_v2(void *s) { return cudaStreamDestroy(s); }
EXPORT int cuStreamSynchronize(void *s) { return cudaStreamSynchronize(s); }
EXPORT int cuStreamQuery(void *s) { return cudaStreamQuery(s); }
EXPORT int cuStreamIsCapturing(void *s, int *status) { return cudaStreamIsCapturing(s, status); }
EXPORT int cuStreamWaitEvent(void *s, void *e, unsigned flags) { return cudaStreamWaitEvent(s, e, flags); }
EXPORT int cuEventCreate(void **e, unsigned flags) { return cudaEventCreateWithFlags(e, flags); }
EXPORT int cuEventRecord(void *e, void *s) { return cudaEventRecord(e, s); }
EXPORT int cuEventQuery(void *e) { return cudaEventQuery(e); }
EXPORT int cuEventSynchronize(void *e) { return cudaEventSynchronize(e); }
EXPORT int cuEventDestroy_v2(void *e) { return cudaEventDestroy(e); }
EXPORT int cuEventElapsedTime(float *ms, void *a, void *b) { return cudaEventElapsedTime(ms, a, b); }

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status);
EXPORT int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags);

#define PLAIN(name) { #name, (void *)name }
#define V2(name) { #name, (void *)name##_v2 }, { #name "_v2", (void *)name##_v2 }
static const struct { const char *name; void *function; } ENTRY_POINTS[] = {
    PLAIN(cuInit), PLAIN(cuDriverGetVersion), PLAIN(cuDeviceGetCount), PLAIN(cuDeviceGet), PLAIN(cuDeviceGetName),
    V2(cuDeviceTotalMem), PLAIN(cuDeviceGetAttribute), V2(cuDeviceGetUuid), PLAIN(cuDeviceGetPCIBusId),
    PLAIN(cuDevicePrimaryCtxRetain), V2(cuDevicePrimaryCtxRelease), PLAIN(cuDevicePrimaryCtxGetState),
    PLAIN(cuCtxGetCurrent), PLAIN(cuCtxSetCurrent), PLAIN(cuCtxGetDevice), PLAIN(cuCtxSynchronize),
    PLAIN(cuCtxSetLimit), PLAIN(cuCtxGetLimit), PLAIN(cuGetErrorString), PLAIN(cuGetErrorName),
    PLAIN(cuMemGetAllocationGranularity), PLAIN(cuMemAddressReserve), PLAIN(cuMemAddressFree), PLAIN(cuMemCreate),
    PLAIN(cuMemRelease), PLAIN(cuMemMap), PLAIN(cuMemUnmap), PLAIN(cuMemSetAccess), PLAIN(cuMemRetainAllocationHandle),
    V2(cuMemGetAddressRange), V2(cuMemGetInfo), V2(cuMemAlloc), V2(cuMemFree), V2(cuMemAllocHost), PLAIN(cuMemFreeHost),
    V2(cuMemcpyHtoD), V2(cuMemcpyDtoH), V2(cuMemcpyHtoDAsync), V2(cuMemcpyDtoHAsync), V2(cuMemcpyDtoDAsync),
    PLAIN(cuMemcpyAsync), PLAIN(cuMemsetD8Async), PLAIN(cuMemsetD32Async), PLAIN(cuPointerGetAttribute),
    PLAIN(cuPointerGetAttributes), PLAIN(cuModuleLoadData), PLAIN(cuModuleLoadDataEx), PLAIN(cuModuleLoad),
    PLAIN(cuModuleUnload), PLAIN(cuModuleGetFunction), PLAIN(cuLibraryLoadData), PLAIN(cuLibraryUnload),
    PLAIN(cuLibraryGetKernel), PLAIN(cuKernelGetFunction), PLAIN(cuKernelGetAttribute), PLAIN(cuFuncGetAttribute),
    PLAIN(cuFuncSetAttribute), PLAIN(cuFuncSetCacheConfig), PLAIN(cuOccupancyMaxActiveBlocksPerMultiprocessor),
    PLAIN(cuLaunchKernel), PLAIN(cuLaunchCooperativeKernel), PLAIN(cuLaunchKernelEx), PLAIN(cuTensorMapEncodeTiled),
    PLAIN(cuStreamGetCtx), PLAIN(cuStreamCreateWithPriority), PLAIN(cuStreamCreate), V2(cuStreamDestroy),
    PLAIN(cuStreamSynchronize), PLAIN(cuStreamQuery), PLAIN(cuStreamIsCapturing), PLAIN(cuStreamWaitEvent),
    PLAIN(cuEventCreate), PLAIN(cuEventRecord), PLAIN(cuEventQuery), PLAIN(cuEventSynchronize), V2(cuEventDestroy),
    PLAIN(cuEventElapsedTime), V2(cuCtxPushCurrent), V2(cuCtxPopCurrent), PLAIN(cuModuleLoadFatBinary),
    PLAIN(cuLibraryLoadFromFile), PLAIN(cuKernelSetAttribute), PLAIN(cuGetExportTable), PLAIN(cuLogsRegisterCallback),
    PLAIN(cuLogsUnregisterCallback), V2(cuGetProcAddress), PLAIN(cuIpcGetMemHandle), V2(cuIpcOpenMemHandle),
    PLAIN(cuIpcCloseMemHandle), PLAIN(cuMemExportToShareableHandle), PLAIN(cuMemImportFromShareableHandle),
};

/* A function that is known by name but not implemented is found too, and fails with its name when called. */
extern void *unimplemented_function(const char *name);

void *driver_function(const char *name);
void *driver_function(const char *name) {
    for (size_t i = 0; i < sizeof ENTRY_POINTS / sizeof *ENTRY_POINTS; i++)
        if (!strcmp(ENTRY_POINTS[i].name, name)) return ENTRY_POINTS[i].function;
    return unimplemented_function(name);
}

int cuGetProcAddress_v2(const char *name, void **function, int version UNUSED, unsigned long long flags UNUSED,
                        int *status) {
    NEEDS(name, function);
    *function = driver_function(name);
    if (status) *status = *function ? 0 : 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
    return *function ? SUCCESS : ERROR_NOT_FOUND;
}
int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
