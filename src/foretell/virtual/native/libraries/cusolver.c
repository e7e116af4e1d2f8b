/* cuSOLVER's dense functions. Nothing is computed; `devInfo` stays unknown, which reads as zero: success. Workspaces
 * are not documented: LAPACK's formulas for the same factorisations stand in (block size 64), and the result carries
 * a caveat. */
#include "core/vgpu.h"
#include <stdlib.h>

#define INVALID 3 /* CUSOLVER_STATUS_INVALID_VALUE */

#define BLOCK 64
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

EXPORT int cusolverDnCreate(void **handle) {
    NEEDS(handle);
    use_library(LIBRARY_CUBLAS);
    *handle = allocate(16);
    return 0;
}
EXPORT int cusolverDnDestroy(void *handle) { free(handle); return 0; }
EXPORT int cusolverDnSetStream(void *handle UNUSED, void *stream UNUSED) { return 0; }
#define OBJECT(name) \
    EXPORT int cusolverDnCreate##name(void **object) { NEEDS(object); *object = allocate(64); return 0; } \
    EXPORT int cusolverDnDestroy##name(void *object) { free(object); return 0; }
OBJECT(GesvdjInfo) OBJECT(SyevjInfo) OBJECT(Params)
EXPORT int cusolverDnXgesvdjSetMaxSweeps(void *info UNUSED, int sweeps UNUSED) { return 0; }
EXPORT int cusolverDnXgesvdjSetSortEig(void *info UNUSED, int sort UNUSED) { return 0; }
EXPORT int cusolverDnXgesvdjSetTolerance(void *info UNUSED, double tolerance UNUSED) { return 0; }
EXPORT int cusolverDnXsyevjSetSortEig(void *info UNUSED, int sort UNUSED) { return 0; }

/* ---- workspaces, in elements of the matrix's type ---------------------------------------------------------------- */

static int answer(int *lwork, int64_t elements) {
    NEEDS(lwork);
    if (elements > INT32_MAX) return INVALID; /* the 64-bit functions are for these */
    *lwork = (int)larger(elements, 1);
    return 0;
}
#define EACH_TYPE(F) F(S) F(D) F(C) F(Z)

#define SIZES(t) \
    EXPORT int cusolverDn##t##potrf_bufferSize(void *h UNUSED, int uplo UNUSED, int n, void *a UNUSED, int lda UNUSED, \
                                               int *lwork) { \
        return answer(lwork, (int64_t)n * BLOCK); \
    } \
    EXPORT int cusolverDn##t##getrf_bufferSize(void *h UNUSED, int m, int n, void *a UNUSED, int lda UNUSED, \
                                               int *lwork) { \
        return answer(lwork, larger(m, n) * BLOCK); \
    } \
    EXPORT int cusolverDn##t##geqrf_bufferSize(void *h UNUSED, int m UNUSED, int n, void *a UNUSED, int lda UNUSED, \
                                               int *lwork) { \
        return answer(lwork, (int64_t)n * BLOCK); \
    } \
    EXPORT int cusolverDn##t##sytrf_bufferSize(void *h UNUSED, int n, void *a UNUSED, int lda UNUSED, int *lwork) { \
        return answer(lwork, (int64_t)n * BLOCK); \
    } \
    EXPORT int cusolverDn##t##gesvd_bufferSize(void *h UNUSED, int m, int n, int *lwork) { \
        return answer(lwork, larger(3 * larger(m, n), 5 * larger(m, n)) + (int64_t)BLOCK * (m + n)); \
    } \
    EXPORT int cusolverDn##t##gesvdj_bufferSize(void *h UNUSED, int jobz UNUSED, int econ UNUSED, int m, int n, \
                                                const void *a UNUSED, int lda UNUSED, const void *s UNUSED, \
                                                const void *u UNUSED, int ldu UNUSED, const void *v UNUSED, \
                                                int ldv UNUSED, int *lwork, void *params UNUSED) { \
        return answer(lwork, (int64_t)m * n + 2 * larger(m, n) * larger(m, n)); \
    } \
    EXPORT int cusolverDn##t##gesvdjBatched_bufferSize(void *h UNUSED, int jobz UNUSED, int m, int n, \
                                                       const void *a UNUSED, int lda UNUSED, const void *s UNUSED, \
                                                       const void *u UNUSED, int ldu UNUSED, const void *v UNUSED, \
                                                       int ldv UNUSED, int *lwork, void *params UNUSED, int batch) { \
        return answer(lwork, (int64_t)batch * (m + n)); \
    } \
    EXPORT int cusolverDn##t##gesvdaStridedBatched_bufferSize(void *h UNUSED, int jobz UNUSED, int rank UNUSED, int m, \
                                                              int n, const void *a UNUSED, int lda UNUSED, \
                                                              long long sa UNUSED, const void *s UNUSED, \
                                                              long long ss UNUSED, const void *u UNUSED, \
                                                              int ldu UNUSED, long long su UNUSED, \
                                                              const void *v UNUSED, int ldv UNUSED, \
                                                              long long sv UNUSED, int *lwork, int batch) { \
        return answer(lwork, (int64_t)batch * ((int64_t)n * n + larger(m, n) * BLOCK)); \
    }
EACH_TYPE(SIZES)

/* Orthogonal for real types, unitary for complex ones; likewise symmetric and hermitian. LAPACK: syevd needs 1 + 6n
 * + 2n^2. */
#define QR_SIZES(t, prefix) \
    EXPORT int cusolverDn##t##prefix##gqr_bufferSize(void *h UNUSED, int m UNUSED, int n, int k UNUSED, \
                                                     const void *a UNUSED, int lda UNUSED, const void *tau UNUSED, \
                                                     int *lwork) { \
        return answer(lwork, (int64_t)n * BLOCK); \
    } \
    EXPORT int cusolverDn##t##prefix##mqr_bufferSize(void *h UNUSED, int side, int trans UNUSED, int m, int n, \
                                                     int k UNUSED, const void *a UNUSED, int lda UNUSED, \
                                                     const void *tau UNUSED, const void *c UNUSED, int ldc UNUSED, \
                                                     int *lwork) { \
        return answer(lwork, (int64_t)(side == 0 ? n : m) * BLOCK); \
    }
QR_SIZES(S, or) QR_SIZES(D, or) QR_SIZES(C, un) QR_SIZES(Z, un)
#define EIGEN_SIZES(t, prefix) \
    EXPORT int cusolverDn##t##prefix##evd_bufferSize(void *h UNUSED, int jobz UNUSED, int uplo UNUSED, int n, \
                                                     const void *a UNUSED, int lda UNUSED, const void *w UNUSED, \
                                                     int *lwork) { \
        return answer(lwork, 1 + 6 * (int64_t)n + 2 * (int64_t)n * n); \
    } \
    EXPORT int cusolverDn##t##prefix##evj_bufferSize(void *h UNUSED, int jobz UNUSED, int uplo UNUSED, int n, \
                                                     const void *a UNUSED, int lda UNUSED, const void *w UNUSED, \
                                                     int *lwork, void *params UNUSED) { \
        return answer(lwork, 2 * (int64_t)n * n); \
    } \
    EXPORT int cusolverDn##t##prefix##evjBatched_bufferSize(void *h UNUSED, int jobz UNUSED, int uplo UNUSED, int n, \
                                                            const void *a UNUSED, int lda UNUSED, \
                                                            const void *w UNUSED, int *lwork, void *params UNUSED, \
                                                            int batch) { \
        return answer(lwork, (int64_t)n * batch); \
    }
EIGEN_SIZES(S, sy) EIGEN_SIZES(D, sy) EIGEN_SIZES(C, he) EIGEN_SIZES(Z, he)

/* ---- the 64-bit functions: workspaces in bytes, on the device and on the host ------------------------------------ */

static int64_t type_bytes(int type) { /* cudaDataType */
    return type == 0 ? 4 : type == 1 || type == 4 ? 8 : type == 5 ? 16 : 2;
}
static int answer_bytes(size_t *device, size_t *host, int64_t elements, int type) {
    NEEDS(device, host);
    *device = (size_t)(elements * type_bytes(type));
    *host = 0;
    return 0;
}
EXPORT int cusolverDnXpotrf_bufferSize(void *h UNUSED, void *p UNUSED, int uplo UNUSED, int64_t n, int type,
                                       const void *a UNUSED, int64_t lda UNUSED, int compute UNUSED, size_t *device,
                                       size_t *host) {
    return answer_bytes(device, host, n * BLOCK, type);
}
EXPORT int cusolverDnXgeqrf_bufferSize(void *h UNUSED, void *p UNUSED, int64_t m UNUSED, int64_t n, int type,
                                       const void *a UNUSED, int64_t lda UNUSED, int tau_type UNUSED,
                                       const void *tau UNUSED, int compute UNUSED, size_t *device, size_t *host) {
    return answer_bytes(device, host, n * BLOCK, type);
}
EXPORT int cusolverDnXsyevd_bufferSize(void *h UNUSED, void *p UNUSED, int jobz UNUSED, int uplo UNUSED, int64_t n,
                                       int type, const void *a UNUSED, int64_t lda UNUSED, int w_type UNUSED,
                                       const void *w UNUSED, int compute UNUSED, size_t *device, size_t *host) {
    return answer_bytes(device, host, 1 + 6 * n + 2 * n * n, type);
}
EXPORT int cusolverDnXsyevBatched_bufferSize(void *h UNUSED, void *p UNUSED, int jobz UNUSED, int uplo UNUSED,
                                             int64_t n, int type, const void *a UNUSED, int64_t lda UNUSED,
                                             int w_type UNUSED, const void *w UNUSED, int compute UNUSED,
                                             size_t *device, size_t *host, int64_t batch) {
    return answer_bytes(device, host, batch * (1 + 6 * n + 2 * n * n), type);
}
EXPORT int cusolverDnXgeev_bufferSize(void *h UNUSED, void *p UNUSED, int jobvl UNUSED, int jobvr UNUSED, int64_t n,
                                      int type, const void *a UNUSED, int64_t lda UNUSED, int w_type UNUSED,
                                      const void *w UNUSED, int vl_type UNUSED, const void *vl UNUSED,
                                      int64_t ldvl UNUSED, int vr_type UNUSED, const void *vr UNUSED,
                                      int64_t ldvr UNUSED, int compute UNUSED, size_t *device, size_t *host) {
    return answer_bytes(device, host, 4 * n + n * n, type);
}
EXPORT int cusolverDnXsytrs_bufferSize(void *h UNUSED, int uplo UNUSED, int64_t n, int64_t nrhs, int type,
                                       const void *a UNUSED, int64_t lda UNUSED, const int64_t *ipiv UNUSED,
                                       int b_type UNUSED, void *b UNUSED, int64_t ldb UNUSED, size_t *device,
                                       size_t *host) {
    return answer_bytes(device, host, n * nrhs, type);
}

/* ---- computation ------------------------------------------------------------------------------------------------- */

#define ON_DEVICE(name) EXPORT int name(void) { library_call(#name); return 0; }
#define COMPUTES(t) \
    ON_DEVICE(cusolverDn##t##potrf) ON_DEVICE(cusolverDn##t##potrfBatched) ON_DEVICE(cusolverDn##t##potrs) \
    ON_DEVICE(cusolverDn##t##potrsBatched) ON_DEVICE(cusolverDn##t##getrf) ON_DEVICE(cusolverDn##t##getrs) \
    ON_DEVICE(cusolverDn##t##geqrf) ON_DEVICE(cusolverDn##t##sytrf) ON_DEVICE(cusolverDn##t##gesvd) \
    ON_DEVICE(cusolverDn##t##gesvdj) ON_DEVICE(cusolverDn##t##gesvdjBatched) \
    ON_DEVICE(cusolverDn##t##gesvdaStridedBatched)
EACH_TYPE(COMPUTES)
#define QR_AND_EIGEN(t, q, e) \
    ON_DEVICE(cusolverDn##t##q##gqr) ON_DEVICE(cusolverDn##t##q##mqr) ON_DEVICE(cusolverDn##t##e##evd) \
    ON_DEVICE(cusolverDn##t##e##evj) ON_DEVICE(cusolverDn##t##e##evjBatched)
QR_AND_EIGEN(S, or, sy) QR_AND_EIGEN(D, or, sy) QR_AND_EIGEN(C, un, he) QR_AND_EIGEN(Z, un, he)
ON_DEVICE(cusolverDnXpotrf) ON_DEVICE(cusolverDnXpotrs) ON_DEVICE(cusolverDnXgeqrf) ON_DEVICE(cusolverDnXsyevd)
ON_DEVICE(cusolverDnXsyevBatched) ON_DEVICE(cusolverDnXgeev) ON_DEVICE(cusolverDnXsytrs)
