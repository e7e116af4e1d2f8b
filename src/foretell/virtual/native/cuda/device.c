/* What a program can ask about the card: properties, attributes, UUID, current device, peers. */
#include "core/vgpu.h"
#include <stdio.h>
#include <string.h>
#include "cuda/device.h"

#define INVALID fail(ERROR_INVALID_VALUE)

/* GPU-00000000-0000-0000-0000-00000000000<index>: NVML and the runtime must agree, and so must CUDA_VISIBLE_DEVICES. */
void device_uuid(int device, unsigned char uuid[16]) {
    int index = physical_index(device);
    memset(uuid, 0, 16);
    uuid[15] = (unsigned char)(index / 10 * 16 + index % 10);
}

#define PROPERTIES Properties12
#define FILL fill_12
#define ONLY_12(...) __VA_ARGS__
#include "cuda/device_properties.inc"
#undef PROPERTIES
#undef FILL
#undef ONLY_12
#define PROPERTIES Properties13
#define FILL fill_13
#define ONLY_12(...)
#include "cuda/device_properties.inc"

EXPORT int cudaGetDeviceProperties_v2(Properties12 *properties, int device) {
    NEEDS(properties);
    if (physical_index(device) < 0) return fail(ERROR_INVALID_DEVICE);
    fill_12(properties, device);
    return SUCCESS;
}

EXPORT int cudaGetDeviceProperties(Properties13 *properties, int device) {
    NEEDS(properties);
    if (physical_index(device) < 0) return fail(ERROR_INVALID_DEVICE);
    fill_13(properties, device);
    return SUCCESS;
}

/* cudaDeviceAttr and CUdevice_attribute share their numbers. */
int device_attribute(int *value, int attribute, int device) {
    if (!value) return ERROR_INVALID_VALUE;
    if (physical_index(device) < 0) return ERROR_INVALID_DEVICE;
    const Card *c = card();
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;             /* threads per block, block x, y */
    case 4: *value = 64; break;                               /* block z */
    case 5: *value = INT32_MAX; break;                        /* grid x */
    case 6: case 7: *value = 65535; break;
    case 8: *value = (int)c->shared_per_block; break;
    case 9: *value = 65536; break;                            /* constant memory */
    case 10: *value = 32; break;                              /* warp */
    case 11: *value = INT32_MAX; break;                       /* pitch */
    case 12: case 82: *value = (int)c->registers_per_sm; break;
    case 13: *value = (int)c->clock_khz; break;
    case 14: case 30: *value = 512; break;                    /* texture, surface alignment */
    case 16: *value = (int)c->sms; break;
    case 33: *value = physical_index(device) + 1; break;      /* PCI bus */
    case 36: *value = (int)c->memory_clock_khz; break;
    case 37: *value = (int)c->bus_bits; break;
    case 38: *value = (int)c->l2; break;
    case 39: *value = (int)c->threads_per_sm; break;
    case 40: *value = 2; break;                               /* copy engines */
    case 51: *value = 32; break;                              /* texture pitch alignment */
    case 75: *value = (int)c->major; break;
    case 76: *value = (int)c->minor; break;
    case 81: *value = (int)c->shared_per_sm; break;
    /* fp32 : fp64 speed */
    case 87: *value = c->major == 8 && c->minor == 0 ? 2 : c->major >= 9 && c->minor == 0 ? 2 : 64; break;
    case 97: *value = (int)c->shared_per_block_optin; break;
    case 106: *value = (int)c->blocks_per_sm; break;
    case 111: *value = c->major >= 8 ? 1024 : 0; break;       /* shared memory the driver keeps */
    case 120: case 127: *value = c->major >= 9; break;        /* clusters, tensor maps */
    case 126: *value = c->major >= 9 ? 4 : 1; break;          /* memory synchronisation domains */
    case 134: *value = -1; break;                             /* host NUMA node: none */
    case 139: *value = (int)c->pci_device_id; break;
    /* supported: overlap, mapping, concurrency, unified addresses, priorities, L1, managed, preemption, cooperative
     * launch, registered host memory, virtual memory management, memory pools, IPC events, function pointers */
    case 15: case 19: case 31: case 41: case 78: case 79: case 80: case 83: case 89: case 90: case 91: case 95: case 99:
    case 102: case 113: case 115: case 125: case 129: *value = 1; break;
    /* not there: timeout, integrated, compute mode, ECC, TCC, multi-GPU boards, native atomics, pageable access,
     * stream memory operations (92-94), multi-device launch, remote writes, shareable handles (103-105, 119),
     * compression, persisting L2, sparse arrays, semaphores, RDMA, multicast, NUMA, MPS, graphics interoperation,
     * fabric */
    default: *value = 0;
    }
    return SUCCESS;
}

EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    return fail(device_attribute(value, attribute, device));
}

EXPORT int cudaGetDeviceCount(int *count) {
    NEEDS(count);
    *count = visible_device_count();
    return *count ? SUCCESS : fail(ERROR_NO_DEVICE);
}

EXPORT int cudaGetDevice(int *device) {
    NEEDS(device);
    if (!visible_device_count()) return fail(ERROR_NO_DEVICE);
    *device = current_device;
    return SUCCESS;
}

EXPORT int cudaSetDevice(int device) {
    if (physical_index(device) < 0) return fail(visible_device_count() ? ERROR_INVALID_DEVICE : ERROR_NO_DEVICE);
    current_device = device;
    lock();
    device_state(device); /* since CUDA 12 setting a device creates its context */
    unlock();
    return SUCCESS;
}

EXPORT int cudaDeviceGetPCIBusId(char *id, int length, int device) {
    NEEDS(id);
    if (physical_index(device) < 0) return fail(ERROR_INVALID_DEVICE);
    snprintf(id, (size_t)length, "0000:%02X:00.0", physical_index(device) + 1);
    return SUCCESS;
}

EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return SUCCESS;
}

/* Cards in one machine reach each other, as over NVLink or PCIe. */
EXPORT int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    NEEDS(can);
    if (physical_index(device) < 0 || physical_index(peer) < 0) return fail(ERROR_INVALID_DEVICE);
    *can = device != peer;
    return SUCCESS;
}

EXPORT int cudaDeviceEnablePeerAccess(int peer, unsigned flags UNUSED) {
    static bool is_enabled[MAX_DEVICES][MAX_DEVICES];
    if (physical_index(peer) < 0 || peer == current_device) return fail(ERROR_INVALID_DEVICE);
    lock();
    bool was = is_enabled[current_device][peer];
    is_enabled[current_device][peer] = true;
    unlock();
    return was ? fail(ERROR_PEER_ALREADY_ENABLED) : SUCCESS;
}

EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    NEEDS(free_bytes, total);
    if (!visible_device_count()) return fail(ERROR_NO_DEVICE);
    lock();
    *free_bytes = device_free_bytes(current_device);
    *total = (size_t)card()->total;
    unlock();
    return SUCCESS;
}

EXPORT int cudaGetLastError(void) {
    int error = last_error;
    last_error = SUCCESS;
    return error;
}

EXPORT int cudaPeekAtLastError(void) { return last_error; }

static const struct { int code; const char *name, *text; } ERRORS[] = {
    {SUCCESS, "cudaSuccess", "no error"},
    {ERROR_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {ERROR_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {ERROR_NOT_INITIALIZED, "cudaErrorInitializationError", "initialization error"},
    {ERROR_INVALID_CONFIGURATION, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {ERROR_INVALID_SYMBOL, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {ERROR_NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {ERROR_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {ERROR_NO_KERNEL_IMAGE, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {ERROR_INVALID_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {ERROR_NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {ERROR_NOT_READY, "cudaErrorNotReady", "device not ready"},
    {ERROR_PEER_ALREADY_ENABLED, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {ERROR_NOT_PERMITTED, "cudaErrorNotPermitted", "operation not permitted"},
    {ERROR_NOT_SUPPORTED, "cudaErrorNotSupported",
     "operation not supported (foretell's virtual GPU does not implement it)"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {ERROR_CAPTURE_UNMATCHED, "cudaErrorStreamCaptureUnmatched", "the capture was not initiated in this stream"},
};

const char *error_name(int error) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == error) return ERRORS[i].name;
    return "cudaErrorUnknown";
}

const char *error_text(int error) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == error) return ERRORS[i].text;
    return "unknown error";
}

EXPORT const char *cudaGetErrorName(int error) { return error_name(error); }
EXPORT const char *cudaGetErrorString(int error) { return error_text(error); }

/* torch compares the runtime's version with the one it was built for: ask the runtime that is installed. */
int runtime_version(void) {
    static int version;
    if (!version) {
        int (*real)(int *) = (int (*)(int *))real_function("libcudart.so.", "cudaRuntimeGetVersion");
        if (!real || real(&version) || !version) version = 12040;
    }
    return version;
}

EXPORT int cudaRuntimeGetVersion(int *version) {
    NEEDS(version);
    *version = runtime_version();
    return SUCCESS;
}

/* A driver serves every runtime up to its own version. */
EXPORT int cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }
