/* cuBLAS and cuBLASLt. Products are not computed; handles, modes and heuristics answer as the real libraries do. */
#include "core/vgpu.h"
#include <stdlib.h>
#include <string.h>

#define INVALID 7 /* CUBLAS_STATUS_INVALID_VALUE */

typedef struct { void *stream; int math_mode, pointer_mode, atomics_mode; } Handle;

EXPORT int cublasCreate_v2(void **handle) {
    NEEDS(handle);
    if (!visible_device_count()) return 1; /* CUBLAS_STATUS_NOT_INITIALIZED */
    use_library(LIBRARY_CUBLAS);
    *handle = allocate(sizeof(Handle));
    return 0;
}
EXPORT int cublasDestroy_v2(void *handle) { free(handle); return 0; }
EXPORT int cublasSetStream_v2(Handle *handle, void *stream) { NEEDS(handle); handle->stream = stream; return 0; }
EXPORT int cublasGetStream_v2(Handle *handle, void **stream) {
    NEEDS(handle, stream);
    *stream = handle->stream;
    return 0;
}
EXPORT int cublasSetWorkspace_v2(void *handle UNUSED, void *workspace, size_t bytes) {
    workspace_given(workspace, (int64_t)bytes);
    return 0;
}
EXPORT int cublasSetMathMode(Handle *handle, int mode) { NEEDS(handle); handle->math_mode = mode; return 0; }
EXPORT int cublasGetMathMode(Handle *handle, int *mode) { NEEDS(handle, mode); *mode = handle->math_mode; return 0; }
EXPORT int cublasSetPointerMode_v2(Handle *handle, int mode) { NEEDS(handle); handle->pointer_mode = mode; return 0; }
EXPORT int cublasGetPointerMode_v2(Handle *handle, int *mode) {
    NEEDS(handle, mode);
    *mode = handle->pointer_mode;
    return 0;
}
EXPORT int cublasSetSmCountTarget(void *handle UNUSED, int count UNUSED) { return 0; }

/* Version: asked of the installed library; its property functions need no device. */
static int library_version(const char *library, const char *property_function, int fallback) {
    int (*property)(int, int *) = (int (*)(int, int *))real_function(library, property_function);
    int major = 0, minor = 0, patch = 0;
    if (!property || property(0, &major) || property(1, &minor) || property(2, &patch)) return fallback;
    return major * 10000 + minor * 100 + patch;
}
EXPORT int cublasGetVersion_v2(void *handle UNUSED, int *version) {
    NEEDS(version);
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

/* ---- products of matrices ---------------------------------------------------------------------------------------- */

enum { /* cudaDataType */ R_32F = 0, R_64F = 1, C_32F = 4, C_64F = 5 };
enum { /* cublasComputeType_t */ COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_FAST_TF32 = 77 };
enum { /* cublasMath_t */ TF32_TENSOR_OP_MATH = 3 };

typedef struct { int64_t m, n, k, batch_count; } Sizes;

/* Single precision is computed in TF32 where the handle allows it. */
static int product(const char *name, const Handle *handle, Sizes s, int input_type, int output_type, int compute_type) {
    bool is_single = compute_type == COMPUTE_32F && (input_type == R_32F || input_type == C_32F);
    if (is_single && handle && handle->math_mode == TF32_TENSOR_OP_MATH) compute_type = COMPUTE_32F_FAST_TF32;
    count_launch();
    log_matrix_product(name, (MatrixProductRecord){
        .m = s.m, .n = s.n, .k = s.k, .batch_count = s.batch_count, .input_type = input_type,
        .output_type = output_type, .compute_type = compute_type, .device = current_device});
    return 0;
}

typedef const void *P; /* whatever is of no interest */

/* cublasSgemm and the like: the letter is the type of all three matrices. */
#define GEMM(t, type, compute) \
    EXPORT int cublas##t##gemm_v2(const Handle *h, int op_a UNUSED, int op_b UNUSED, int m, int n, int k) { \
        return product("cublas" #t "gemm_v2", h, (Sizes){m, n, k, 1}, type, type, compute); \
    } \
    EXPORT int cublas##t##gemmBatched(const Handle *h, int op_a UNUSED, int op_b UNUSED, int m, int n, int k, \
                                      P alpha UNUSED, P a UNUSED, int lda UNUSED, P b UNUSED, int ldb UNUSED, \
                                      P beta UNUSED, P c UNUSED, int ldc UNUSED, int batch_count) { \
        return product("cublas" #t "gemmBatched", h, (Sizes){m, n, k, batch_count}, type, type, compute); \
    } \
    EXPORT int cublas##t##gemmStridedBatched(const Handle *h, int op_a UNUSED, int op_b UNUSED, int m, int n, int k, \
                                             P alpha UNUSED, P a UNUSED, int lda UNUSED, long long stride_a UNUSED, \
                                             P b UNUSED, int ldb UNUSED, long long stride_b UNUSED, P beta UNUSED, \
                                             P c UNUSED, int ldc UNUSED, long long stride_c UNUSED, int batch_count) { \
        return product("cublas" #t "gemmStridedBatched", h, (Sizes){m, n, k, batch_count}, type, type, compute); \
    } \
    EXPORT int cublas##t##gemv_v2(const Handle *h, int op, int m, int n) { \
        return product("cublas" #t "gemv_v2", h, (Sizes){op ? n : m, 1, op ? m : n, 1}, type, type, compute); \
    }
GEMM(S, R_32F, COMPUTE_32F) GEMM(D, R_64F, COMPUTE_64F) GEMM(C, C_32F, COMPUTE_32F) GEMM(Z, C_64F, COMPUTE_64F)

EXPORT int cublasSgemmEx(const Handle *h, int op_a UNUSED, int op_b UNUSED, int m, int n, int k, P alpha UNUSED,
                         P a UNUSED, int type_a, int lda UNUSED, P b UNUSED, int type_b UNUSED, int ldb UNUSED,
                         P beta UNUSED, P c UNUSED, int type_c) {
    return product("cublasSgemmEx", h, (Sizes){m, n, k, 1}, type_a, type_c, COMPUTE_32F);
}
EXPORT int cublasGemmEx(const Handle *h, int op_a UNUSED, int op_b UNUSED, int m, int n, int k, P alpha UNUSED,
                        P a UNUSED, int type_a, int lda UNUSED, P b UNUSED, int type_b UNUSED, int ldb UNUSED,
                        P beta UNUSED, P c UNUSED, int type_c, int ldc UNUSED, int compute_type) {
    return product("cublasGemmEx", h, (Sizes){m, n, k, 1}, type_a, type_c, compute_type);
}
EXPORT int cublasGemmBatchedEx(const Handle *h, int op_a UNUSED, int op_b UNUSED, int m, int n, int k, P alpha UNUSED,
                               P a UNUSED, int type_a, int lda UNUSED, P b UNUSED, int type_b UNUSED, int ldb UNUSED,
                               P beta UNUSED, P c UNUSED, int type_c, int ldc UNUSED, int batch_count,
                               int compute_type) {
    return product("cublasGemmBatchedEx", h, (Sizes){m, n, k, batch_count}, type_a, type_c, compute_type);
}
EXPORT int cublasGemmStridedBatchedEx(const Handle *h, int op_a UNUSED, int op_b UNUSED, int m, int n, int k,
                                      P alpha UNUSED, P a UNUSED, int type_a, int lda UNUSED, long long stride_a UNUSED,
                                      P b UNUSED, int type_b UNUSED, int ldb UNUSED, long long stride_b UNUSED,
                                      P beta UNUSED, P c UNUSED, int type_c, int ldc UNUSED, long long stride_c UNUSED,
                                      int batch_count, int compute_type) {
    return product("cublasGemmStridedBatchedEx", h, (Sizes){m, n, k, batch_count}, type_a, type_c, compute_type);
}

/* ---- the rest of cuBLAS ------------------------------------------------------------------------------------------ */

/* Functions whose result stays on the device: nothing to do but count them. */
#define ON_DEVICE(name) EXPORT int name(void) { library_call(#name); return 0; }
#define FOUR_TYPES(name) \
    ON_DEVICE(cublasS##name) ON_DEVICE(cublasD##name) ON_DEVICE(cublasC##name) ON_DEVICE(cublasZ##name)
ON_DEVICE(cublasGemmGroupedBatchedEx)
FOUR_TYPES(trsm_v2) FOUR_TYPES(trsmBatched) FOUR_TYPES(getrfBatched)
FOUR_TYPES(axpy_v2) FOUR_TYPES(copy_v2) FOUR_TYPES(swap_v2) FOUR_TYPES(trmm_v2) FOUR_TYPES(symm_v2) FOUR_TYPES(syrk_v2)

/* These also report through a pointer to the host whether their arguments were valid: they were. */
#define INFO(name, ...) EXPORT int name(__VA_ARGS__) { NEEDS(info); library_call(#name); *info = 0; return 0; }
#define INFO_FUNCTIONS(t) \
    INFO(cublas##t##getrsBatched, P h UNUSED, int op UNUSED, int n UNUSED, int nrhs UNUSED, P a UNUSED, \
         int lda UNUSED, P pivots UNUSED, P b UNUSED, int ldb UNUSED, int *info) \
    INFO(cublas##t##geqrfBatched, P h UNUSED, int m UNUSED, int n UNUSED, P a UNUSED, int lda UNUSED, P tau UNUSED, \
         int *info) \
    INFO(cublas##t##gelsBatched, P h UNUSED, int op UNUSED, int m UNUSED, int n UNUSED, int nrhs UNUSED, P a UNUSED, \
         int lda UNUSED, P c UNUSED, int ldc UNUSED, int *info)
INFO_FUNCTIONS(S) INFO_FUNCTIONS(D) INFO_FUNCTIONS(C) INFO_FUNCTIONS(Z)

/* dot writes to the host or to the device, as the pointer mode says; torch asks for the device. */
static int dot(const Handle *handle, const char *name) {
    NEEDS(handle);
    if (handle->pointer_mode == 0) return unimplemented(name, 15 /* CUBLAS_STATUS_NOT_SUPPORTED */);
    library_call(name);
    return 0;
}
#define DOT(name) EXPORT int name(const Handle *handle) { return dot(handle, #name); }
DOT(cublasSdot_v2) DOT(cublasDdot_v2) DOT(cublasDotEx) DOT(cublasCdotc_v2) DOT(cublasCdotu_v2) DOT(cublasZdotc_v2)
DOT(cublasZdotu_v2)

/* ---- cuBLASLt ---------------------------------------------------------------------------------------------------- */

EXPORT int cublasLtCreate(void **handle) {
    NEEDS(handle);
    use_library(LIBRARY_CUBLAS);
    *handle = allocate(64);
    return 0;
}
EXPORT int cublasLtDestroy(void *handle) { free(handle); return 0; }

/* Descriptors are opaque. Those of the caller have at least 64 bytes (cublasLtMatrixLayoutOpaque_t of CUDA 12); what
 * is kept in one is what the log is to say. One that some other function has made (cublasLtGroupedMatrixLayoutInit)
 * is told by its magic. */
typedef struct { uint32_t magic; int32_t type; uint64_t rows, columns; int32_t batch_count; } Layout;
typedef struct { uint32_t magic; int32_t compute_type, op_a; } Operation;
enum { LAYOUT_MAGIC = 0x6c61796f, OPERATION_MAGIC = 0x6f706572, DESCRIPTOR_BYTES = 512 };
enum { LAYOUT_TYPE = 0, LAYOUT_ROWS = 2, LAYOUT_COLUMNS = 3, LAYOUT_BATCH_COUNT = 5 }; /* CUBLASLT_MATRIX_LAYOUT_... */
enum { DESC_COMPUTE_TYPE = 0, DESC_TRANSA = 3 };                                        /* CUBLASLT_MATMUL_DESC_... */

/* The inline functions of cublasLt.h without `_internal` call these. */
EXPORT int cublasLtMatrixLayoutInit_internal(Layout *l, size_t bytes, int type, uint64_t rows, uint64_t columns,
                                             int64_t ld UNUSED) {
    NEEDS(l);
    memset(l, 0, bytes);
    *l = (Layout){LAYOUT_MAGIC, type, rows, columns, 1};
    return 0;
}
EXPORT int cublasLtMatmulDescInit_internal(Operation *o, size_t bytes, int compute_type, int scale_type UNUSED) {
    NEEDS(o);
    memset(o, 0, bytes);
    *o = (Operation){OPERATION_MAGIC, compute_type, 0};
    return 0;
}
EXPORT int cublasLtMatrixLayoutCreate(Layout **l, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    NEEDS(l);
    *l = allocate(DESCRIPTOR_BYTES);
    return cublasLtMatrixLayoutInit_internal(*l, DESCRIPTOR_BYTES, type, rows, columns, ld);
}
EXPORT int cublasLtMatmulDescCreate(Operation **o, int compute_type, int scale_type) {
    NEEDS(o);
    *o = allocate(DESCRIPTOR_BYTES);
    return cublasLtMatmulDescInit_internal(*o, DESCRIPTOR_BYTES, compute_type, scale_type);
}
EXPORT int cublasLtMatmulPreferenceCreate(void **preference) {
    NEEDS(preference);
    *preference = allocate(DESCRIPTOR_BYTES);
    return 0;
}
EXPORT int cublasLtMatrixLayoutDestroy(void *layout) { free(layout); return 0; }
EXPORT int cublasLtMatmulDescDestroy(void *operation) { free(operation); return 0; }
EXPORT int cublasLtMatmulPreferenceDestroy(void *preference) { free(preference); return 0; }

static void copy_attribute(void *to, size_t room, const void *value, size_t bytes) {
    if (bytes == room) memcpy(to, value, bytes);
}
EXPORT int cublasLtMatrixLayoutSetAttribute(Layout *l, int attribute, const void *value, size_t bytes) {
    NEEDS(l, value);
    if (l->magic != LAYOUT_MAGIC) return 0;
    switch (attribute) {
    case LAYOUT_TYPE: copy_attribute(&l->type, sizeof l->type, value, bytes); break;
    case LAYOUT_ROWS: copy_attribute(&l->rows, sizeof l->rows, value, bytes); break;
    case LAYOUT_COLUMNS: copy_attribute(&l->columns, sizeof l->columns, value, bytes); break;
    case LAYOUT_BATCH_COUNT: copy_attribute(&l->batch_count, sizeof l->batch_count, value, bytes); break;
    }
    return 0;
}
EXPORT int cublasLtMatmulDescSetAttribute(Operation *o, int attribute, const void *value, size_t bytes) {
    NEEDS(o, value);
    if (o->magic != OPERATION_MAGIC) return 0;
    if (attribute == DESC_COMPUTE_TYPE) copy_attribute(&o->compute_type, sizeof o->compute_type, value, bytes);
    if (attribute == DESC_TRANSA) copy_attribute(&o->op_a, sizeof o->op_a, value, bytes);
    return 0;
}
EXPORT int cublasLtMatmulPreferenceSetAttribute(P preference UNUSED, int attribute UNUSED, P value UNUSED,
                                                size_t bytes UNUSED) {
    return 0;
}

/* cublasLtMatmulHeuristicResult_t: a 64-byte algorithm, workspace, status, waves, reserved. The first algorithm
 * needs no more than the workspace the caller has; PyTorch's own buffer does not depend on the answer. */
typedef struct { uint64_t algorithm[8]; size_t workspace; int status; float waves; int reserved[4]; } Heuristic;
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle UNUSED, void *operation UNUSED, void *a UNUSED, void *b UNUSED,
                                          void *c UNUSED, void *d UNUSED, void *preference UNUSED, int requested,
                                          Heuristic *results, int *count) {
    NEEDS(results, count);
    *count = requested > 0;
    if (requested > 0) results[0] = (Heuristic){.waves = 1.0f};
    return 0;
}
EXPORT int cublasLtMatmulAlgoCheck(void *handle UNUSED, void *operation UNUSED, void *a UNUSED, void *b UNUSED,
                                   void *c UNUSED, void *d UNUSED, const void *algorithm UNUSED, Heuristic *result) {
    NEEDS(result);
    *result = (Heuristic){.waves = 1.0f};
    return 0;
}
EXPORT int cublasLtMatmul(P handle UNUSED, const Operation *o, P alpha UNUSED, P a UNUSED, const Layout *a_layout,
                          P b UNUSED, P b_layout UNUSED, P beta UNUSED, P c UNUSED, P c_layout UNUSED, P d UNUSED,
                          const Layout *d_layout, P algorithm UNUSED, P workspace, size_t bytes) {
    NEEDS(o, a_layout, d_layout);
    static const char *NAME = "cublasLtMatmul";
    workspace_given(workspace, (int64_t)bytes);
    if (o->magic != OPERATION_MAGIC || a_layout->magic != LAYOUT_MAGIC || d_layout->magic != LAYOUT_MAGIC) {
        library_call(NAME);
        return 0;
    }
    uint64_t k = o->op_a ? a_layout->rows : a_layout->columns;
    Sizes sizes = {(int64_t)d_layout->rows, (int64_t)d_layout->columns, (int64_t)k, d_layout->batch_count};
    return product(NAME, NULL, sizes, a_layout->type, d_layout->type, o->compute_type);
}

EXPORT const char *cublasGetStatusName(int status) {
    return status == 0 ? "CUBLAS_STATUS_SUCCESS" : status == 15 ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_ERROR";
}
EXPORT const char *cublasGetStatusString(int status) {
    return status == 0 ? "success" : "the functionality requested is not supported";
}
