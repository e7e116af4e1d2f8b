/* cuBLAS and cuBLASLt. Products are not computed; handles, modes and heuristics answer as the real libraries do. */
#include "vgpu.h"
#include <stdlib.h>
#include <string.h>

typedef struct { void *stream; int math_mode, pointer_mode, atomics_mode; } Handle;

EXPORT int cublasCreate_v2(void **handle) {
    if (!visible_device_count()) return 1; /* CUBLAS_STATUS_NOT_INITIALIZED */
    use_library(LIBRARY_CUBLAS);
    *handle = calloc(1, sizeof(Handle));
    return 0;
}
EXPORT int cublasDestroy_v2(void *handle) { free(handle); return 0; }
EXPORT int cublasSetStream_v2(Handle *handle, void *stream) { handle->stream = stream; return 0; }
EXPORT int cublasGetStream_v2(Handle *handle, void **stream) { *stream = handle->stream; return 0; }
EXPORT int cublasSetWorkspace_v2(void *handle UNUSED, void *workspace, size_t bytes) { workspace_given(workspace, (int64_t)bytes); return 0; }
EXPORT int cublasSetMathMode(Handle *handle, int mode) { handle->math_mode = mode; return 0; }
EXPORT int cublasGetMathMode(Handle *handle, int *mode) { *mode = handle->math_mode; return 0; }
EXPORT int cublasSetPointerMode_v2(Handle *handle, int mode) { handle->pointer_mode = mode; return 0; }
EXPORT int cublasGetPointerMode_v2(Handle *handle, int *mode) { *mode = handle->pointer_mode; return 0; }
EXPORT int cublasSetSmCountTarget(void *handle UNUSED, int count UNUSED) { return 0; }

/* Version: asked of the installed library; its property functions need no device. */
static int library_version(const char *library, const char *property_function, int fallback) {
    int (*property)(int, int *) = (int (*)(int, int *))real_function(library, property_function);
    int major = 0, minor = 0, patch = 0;
    if (!property || property(0, &major) || property(1, &minor) || property(2, &patch)) return fallback;
    return major * 10000 + minor * 100 + patch;
}
EXPORT int cublasGetVersion_v2(void *handle UNUSED, int *version) {
    static int found;
    if (!found) found = library_version("libcublas.so.", "cublasGetProperty", 120405);
    *version = found;
    return 0;
}
EXPORT size_t cublasLtGetVersion(void) {
    static int found;
    if (!found) found = library_version("libcublasLt.so.", "cublasLtGetProperty", 120405);
    return (size_t)found;
}

/* Functions whose result stays on the device: nothing to do but count them. */
#define ON_DEVICE(name) EXPORT int name(void) { library_call(#name, 0, 0, 0, 0, 0); return 0; }
#define FOUR_TYPES(name) ON_DEVICE(cublasS##name) ON_DEVICE(cublasD##name) ON_DEVICE(cublasC##name) ON_DEVICE(cublasZ##name)
ON_DEVICE(cublasGemmEx) ON_DEVICE(cublasSgemmEx) ON_DEVICE(cublasGemmStridedBatchedEx) ON_DEVICE(cublasGemmBatchedEx)
ON_DEVICE(cublasGemmGroupedBatchedEx)
FOUR_TYPES(gemm_v2) FOUR_TYPES(gemv_v2) FOUR_TYPES(gemmBatched) FOUR_TYPES(gemmStridedBatched)
FOUR_TYPES(trsm_v2) FOUR_TYPES(trsmBatched) FOUR_TYPES(getrfBatched)
FOUR_TYPES(axpy_v2) FOUR_TYPES(copy_v2) FOUR_TYPES(swap_v2) FOUR_TYPES(trmm_v2) FOUR_TYPES(symm_v2) FOUR_TYPES(syrk_v2)

/* These also report through a pointer to the host whether their arguments were valid: they were. */
#define INFO(name, ...) EXPORT int name(__VA_ARGS__) { library_call(#name, 0, 0, 0, 0, 0); *info = 0; return 0; }
#define INFO_FUNCTIONS(t) \
    INFO(cublas##t##getrsBatched, void *h UNUSED, int op UNUSED, int n UNUSED, int nrhs UNUSED, void *a UNUSED, int lda UNUSED, void *pivots UNUSED, void *b UNUSED, int ldb UNUSED, int *info) \
    INFO(cublas##t##geqrfBatched, void *h UNUSED, int m UNUSED, int n UNUSED, void *a UNUSED, int lda UNUSED, void *tau UNUSED, int *info) \
    INFO(cublas##t##gelsBatched, void *h UNUSED, int op UNUSED, int m UNUSED, int n UNUSED, int nrhs UNUSED, void *a UNUSED, int lda UNUSED, void *c UNUSED, int ldc UNUSED, int *info)
INFO_FUNCTIONS(S) INFO_FUNCTIONS(D) INFO_FUNCTIONS(C) INFO_FUNCTIONS(Z)

/* dot writes to the host or to the device, as the pointer mode says; torch asks for the device. */
static int dot(Handle *handle, const char *name) {
    if (handle->pointer_mode == 0) return unimplemented(name, 15 /* CUBLAS_STATUS_NOT_SUPPORTED */);
    library_call(name, 0, 0, 0, 0, 0);
    return 0;
}
#define DOT(name) EXPORT int name(Handle *handle) { return dot(handle, #name); }
DOT(cublasSdot_v2) DOT(cublasDdot_v2) DOT(cublasDotEx) DOT(cublasCdotc_v2) DOT(cublasCdotu_v2) DOT(cublasZdotc_v2) DOT(cublasZdotu_v2)

/* ---- cuBLASLt -------------------------------------------------------------------------------------------------------------- */

EXPORT int cublasLtCreate(void **handle) { use_library(LIBRARY_CUBLAS); *handle = calloc(1, 64); return 0; }
EXPORT int cublasLtDestroy(void *handle) { free(handle); return 0; }

/* Descriptors are opaque; PyTorch makes them with Create and hands them back. */
#define DESCRIPTOR(name) EXPORT int cublasLt##name##Create(void **descriptor) { *descriptor = calloc(1, 512); return 0; } \
    EXPORT int cublasLt##name##Destroy(void *descriptor) { free(descriptor); return 0; } \
    EXPORT int cublasLt##name##SetAttribute(void *descriptor UNUSED, int attribute UNUSED, const void *value UNUSED, size_t bytes UNUSED) { return 0; }
DESCRIPTOR(MatmulDesc) DESCRIPTOR(MatrixLayout) DESCRIPTOR(MatmulPreference)

/* cublasLtMatmulHeuristicResult_t: a 64-byte algorithm, workspace, status, waves, reserved. The first algorithm needs no more than
 * the workspace the caller has; PyTorch's own buffer does not depend on the answer. */
typedef struct { uint64_t algorithm[8]; size_t workspace; int status; float waves; int reserved[4]; } Heuristic;
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle UNUSED, void *operation UNUSED, void *a UNUSED, void *b UNUSED, void *c UNUSED, void *d UNUSED,
                                          void *preference UNUSED, int requested, Heuristic *results, int *count) {
    *count = requested > 0;
    if (requested > 0) results[0] = (Heuristic){.waves = 1.0f};
    return 0;
}
EXPORT int cublasLtMatmulAlgoCheck(void *handle UNUSED, void *operation UNUSED, void *a UNUSED, void *b UNUSED, void *c UNUSED, void *d UNUSED,
                                   const void *algorithm UNUSED, Heuristic *result) { *result = (Heuristic){.waves = 1.0f}; return 0; }
EXPORT int cublasLtMatmul(void *handle UNUSED, void *operation UNUSED, const void *alpha UNUSED, const void *a UNUSED, void *a_layout UNUSED,
                          const void *b UNUSED, void *b_layout UNUSED, const void *beta UNUSED, const void *c UNUSED, void *c_layout UNUSED,
                          void *d UNUSED, void *d_layout UNUSED, const void *algorithm UNUSED, void *workspace, size_t bytes) {
    workspace_given(workspace, (int64_t)bytes);
    library_call("cublasLtMatmul", 0, 0, 0, 0, 0);
    return 0;
}

EXPORT const char *cublasGetStatusName(int status) { return status == 0 ? "CUBLAS_STATUS_SUCCESS" : status == 15 ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_ERROR"; }
EXPORT const char *cublasGetStatusString(int status) { return status == 0 ? "success" : "the functionality requested is not supported"; }
