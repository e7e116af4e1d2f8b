/* libnvidia-ml.so.1: NVML for torch.cuda.* and monitoring libraries. A library of its own, because programs load it
 * by that name; preloaded beside libcuda.so.1, whose state it reads. What is not here is not found by name, which
 * NVML's users report. */
#include "core/vgpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVML_INVALID_ARGUMENT 2
#define INVALID NVML_INVALID_ARGUMENT
#define NVML_NOT_SUPPORTED 3
#define NVML_NOT_FOUND 6

extern int cudaRuntimeGetVersion(int *version);
extern int cudaDeviceGetAttribute(int *value, int attribute, int device);
extern int foretell_visible_index(int physical_device);
extern int foretell_card(char *name, int name_bytes, int64_t *total, int64_t *context);
extern int foretell_device_usage(int device, uint64_t *used, uint64_t *peak_used, uint64_t *library_bytes,
                                 uint32_t *libraries);

static char handles[MAX_DEVICES]; /* a handle is an address in here, by physical index */
static int index_of(const void *handle) {
    long index = (const char *)handle - handles;
    return index >= 0 && index < foretell_physical_device_count() ? (int)index : -1;
}

EXPORT int nvmlInit(void) { return 0; }
EXPORT int nvmlInit_v2(void) { return 0; }
EXPORT int nvmlInitWithFlags(unsigned flags UNUSED) { return 0; }
EXPORT int nvmlShutdown(void) { return 0; }
EXPORT const char *nvmlErrorString(int error) {
    return error == 0 ? "Success" : error == NVML_NOT_SUPPORTED ? "Not Supported" : "Invalid Argument";
}
EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    NEEDS(version);
    snprintf(version, length, "580.00 (virtual)");
    return 0;
}
EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    NEEDS(version);
    snprintf(version, length, "13.580.00");
    return 0;
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { NEEDS(version); return cudaRuntimeGetVersion(version); }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { NEEDS(version); return cudaRuntimeGetVersion(version); }

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    NEEDS(count);
    *count = (unsigned)foretell_physical_device_count();
    return 0;
}
EXPORT int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    NEEDS(handle);
    if (index >= (unsigned)foretell_physical_device_count()) return NVML_INVALID_ARGUMENT;
    *handle = &handles[index];
    return 0;
}
EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) {
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
    NEEDS(id);
    const char *colon = strchr(id, ':');
    long bus = colon ? strtol(colon + 1, NULL, 16) : 0;
    return nvmlDeviceGetHandleByIndex_v2((unsigned)(bus - 1), handle) ? NVML_NOT_FOUND : 0;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    NEEDS(uuid);
    if (strlen(uuid) < 32) return NVML_NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2((unsigned)atoi(uuid + 31), handle) ? NVML_NOT_FOUND : 0;
}
EXPORT int nvmlDeviceGetIndex(void *handle, unsigned *index) {
    NEEDS(index);
    if (index_of(handle) < 0) return NVML_INVALID_ARGUMENT;
    *index = (unsigned)index_of(handle);
    return 0;
}
EXPORT int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    NEEDS(uuid);
    if (index_of(handle) < 0) return NVML_INVALID_ARGUMENT;
    snprintf(uuid, length, "GPU-00000000-0000-0000-0000-%012d", index_of(handle));
    return 0;
}
EXPORT int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
    NEEDS(name);
    int64_t total, context;
    return index_of(handle) < 0 ? NVML_INVALID_ARGUMENT : foretell_card(name, (int)length, &total, &context);
}

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory_v2;

static int memory_of(void *handle, Memory *memory) {
    NEEDS(memory);
    char name[4];
    int64_t total, context;
    uint64_t used = 0, peak, library = 0;
    uint32_t libraries;
    if (index_of(handle) < 0) return NVML_INVALID_ARGUMENT;
    foretell_card(name, sizeof name, &total, &context);
    int device = foretell_visible_index(index_of(handle));
    bool has_context = foretell_device_usage(device, &used, &peak, &library, &libraries) == 0;
    memory->total = (unsigned long long)total;
    memory->used = used + library + (has_context ? (unsigned long long)context : 0);
    memory->free = memory->total - memory->used;
    return 0;
}
EXPORT int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) { return memory_of(handle, memory); }
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory_v2 *memory) {
    NEEDS(memory);
    Memory m;
    int error = memory_of(handle, &m);
    if (!error) memory->total = m.total, memory->reserved = 0, memory->free = m.free, memory->used = m.used;
    return error;
}

/* Nothing runs, so a monitor sees an idle, cool card. */
EXPORT int nvmlDeviceGetUtilizationRates(void *handle UNUSED, unsigned rates[2]) {
    NEEDS(rates);
    rates[0] = rates[1] = 0;
    return 0;
}
EXPORT int nvmlDeviceGetTemperature(void *handle UNUSED, int sensor UNUSED, unsigned *celsius) {
    NEEDS(celsius);
    *celsius = 30;
    return 0;
}
EXPORT int nvmlDeviceGetPowerUsage(void *handle UNUSED, unsigned *milliwatts) {
    NEEDS(milliwatts);
    *milliwatts = 0;
    return 0;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    NEEDS(major, minor);
    if (index_of(handle) < 0) return NVML_INVALID_ARGUMENT;
    cudaDeviceGetAttribute(major, 75, 0);
    return cudaDeviceGetAttribute(minor, 76, 0);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses(void *handle UNUSED, unsigned *count, void *infos UNUSED) {
    NEEDS(count);
    *count = 0;
    return 0;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *handle UNUSED, unsigned *count, void *infos UNUSED) {
    NEEDS(count);
    *count = 0;
    return 0;
}
EXPORT int nvmlDeviceGetP2PStatus(void *a UNUSED, void *b UNUSED, int kind UNUSED, int *status) {
    NEEDS(status);
    *status = 0;
    return 0;
}
/* After the version: cluster UUID, status, clique, state (0: not supported) and health, all zero on a card without a
 * fabric. */
EXPORT int nvmlDeviceGetGpuFabricInfoV(void *handle UNUSED, void *info) {
    NEEDS(info);
    memset((char *)info + 4, 0, 32);
    return 0;
}
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle UNUSED, unsigned link UNUSED, int *type UNUSED) {
    return NVML_NOT_SUPPORTED;
}
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle UNUSED, unsigned link UNUSED, void *info UNUSED) {
    return NVML_NOT_SUPPORTED;
}
