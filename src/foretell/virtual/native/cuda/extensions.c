/* Functions of the CUDA runtime that torch does not call and extensions do. What is missing here too is in
 * unimplemented.inc. */
#include "cuda/device.h"
#include "cuda/kernels.h"
#include "memory/memory.h"
#include "cuda/streams.h"

#define INVALID fail(ERROR_INVALID_VALUE)

/* ---- rows of a pitched array ------------------------------------------------------------------------------------- */

#define PITCH ((size_t)512)

EXPORT int cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
    NEEDS(address, pitch);
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    return fail(device_malloc(address, *pitch * height, "cudaMallocPitch"));
}

EXPORT int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                        int kind) {
    if (width > to_pitch || width > from_pitch) return fail(ERROR_INVALID_VALUE);
    host_synchronizes(current_device);
    int error = SUCCESS;
    for (size_t row = 0; row < height && !error; row++)
        error = copy_memory((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind,
                            "cudaMemcpy2D");
    return fail(error);
}

EXPORT int cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, void *stream) {
    if (width > pitch) return fail(ERROR_INVALID_VALUE);
    if (!stream_of(stream)) return fail(ERROR_INVALID_HANDLE);
    int error = SUCCESS;
    for (size_t row = 0; row < height && !error; row++) error = set_memory((char *)to + row * pitch, value, 1, width);
    return fail(error);
}
EXPORT int cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
    return cudaMemset2DAsync(to, pitch, value, width, height, NULL);
}

/* ---- wishes: they change speed, never memory --------------------------------------------------------------------- */

EXPORT int cudaDeviceSetCacheConfig(int config UNUSED) { return SUCCESS; }
EXPORT int cudaDeviceGetCacheConfig(int *config) { NEEDS(config); *config = 0; return SUCCESS; } /* no preference */
EXPORT int cudaDeviceSetSharedMemConfig(int config UNUSED) { return SUCCESS; }
EXPORT int cudaFuncSetCacheConfig(const void *function, int config UNUSED) {
    return kernel_of(function) ? SUCCESS : fail(ERROR_INVALID_HANDLE);
}
EXPORT int cudaFuncSetSharedMemConfig(const void *function, int config UNUSED) {
    return kernel_of(function) ? SUCCESS : fail(ERROR_INVALID_HANDLE);
}
EXPORT int cudaCtxResetPersistingL2Cache(void) { return SUCCESS; }
EXPORT int cudaStreamSetAttribute(void *stream, int attribute UNUSED, const void *value UNUSED) {
    return stream_of(stream) ? SUCCESS : fail(ERROR_INVALID_HANDLE);
}
EXPORT int cudaSetDeviceFlags(unsigned flags UNUSED) { return SUCCESS; }
EXPORT int cudaGetDeviceFlags(unsigned *flags) {
    NEEDS(flags);
    *flags = 8; /* cudaDeviceMapHost, always on */
    return SUCCESS;
}

/* Per-thread default streams are ordered as the legacy one: kernels do nothing, so only the device matters. */
extern int cudaLaunchKernel(const void *, Dim3, Dim3, void **, size_t, void *), cudaStreamSynchronize(void *),
    cudaMemcpyAsync(void *, const void *, size_t, int, void *), cudaMemsetAsync(void *, int, size_t, void *),
    cudaMemcpy(void *, const void *, size_t, int);
EXPORT int cudaLaunchKernel_ptsz(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared,
                                 void *stream) {
    return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}
EXPORT int cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, int kind, void *stream) {
    return cudaMemcpyAsync(to, from, bytes, kind, stream);
}
EXPORT int cudaMemcpy_ptds(void *to, const void *from, size_t bytes, int kind) {
    return cudaMemcpy(to, from, bytes, kind);
}
EXPORT int cudaMemsetAsync_ptsz(void *to, int value, size_t bytes, void *stream) {
    return cudaMemsetAsync(to, value, bytes, stream);
}
EXPORT int cudaStreamSynchronize_ptsz(void *stream) { return cudaStreamSynchronize(stream); }
