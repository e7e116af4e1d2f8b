/* cuSPARSE. Descriptors need no GPU and stay the real library's; here is what wants a handle. Buffers are not
 * documented: one word a row for products, two words an entry for sorting, and the result carries a caveat.
 *
 * The data decides how many entries a sum or product of two sparse matrices has. The Python side works it out where
 * the indices are known and leaves it as an answer; where it is not known, the most it can be is taken, and the log
 * says so. */
#include "core/vgpu.h"
#include <stdlib.h>

#define INVALID 3 /* CUSPARSE_STATUS_INVALID_VALUE */

EXPORT int cusparseCreate(void **handle) {
    NEEDS(handle);
    use_library(LIBRARY_CUBLAS);
    *handle = allocate(16);
    return 0;
}
EXPORT int cusparseDestroy(void *handle) { free(handle); return 0; }
EXPORT int cusparseSetStream(void *handle UNUSED, void *stream UNUSED) { return 0; }
EXPORT int cusparseSetPointerMode(void *handle UNUSED, int mode UNUSED) { return 0; }

typedef struct { int64_t rows, columns, entries; } Size;
typedef int (*GetSize)(const void *, int64_t *, int64_t *, int64_t *);
static Size size_of(const void *matrix) {
    static GetSize get;
    if (!get) get = (GetSize)real_function("libcusparse.so.", "cusparseSpMatGetSize");
    Size size = {0, 0, 0};
    if (get) get(matrix, &size.rows, &size.columns, &size.entries);
    else unimplemented("cusparseSpMatGetSize (without NVIDIA's cuSPARSE beside torch)", 0);
    return size;
}
static int64_t rows_of(const void *matrix) { return size_of(matrix).rows; }
static int row_buffer(size_t *bytes, const void *matrix) {
    NEEDS(bytes, matrix);
    *bytes = (size_t)(8 * (rows_of(matrix) + 1));
    return 0;
}

EXPORT int cusparseSpMM_bufferSize(void *h UNUSED, int op_a UNUSED, int op_b UNUSED, const void *alpha UNUSED,
                                   const void *a, const void *b UNUSED, const void *beta UNUSED, void *c UNUSED,
                                   int compute UNUSED, int algorithm UNUSED, size_t *bytes) {
    return row_buffer(bytes, a);
}
EXPORT int cusparseSpMV_bufferSize(void *h UNUSED, int op UNUSED, const void *alpha UNUSED, const void *a,
                                   const void *x UNUSED, const void *beta UNUSED, void *y UNUSED, int compute UNUSED,
                                   int algorithm UNUSED, size_t *bytes) {
    return row_buffer(bytes, a);
}
EXPORT int cusparseSDDMM_bufferSize(void *h UNUSED, int op_a UNUSED, int op_b UNUSED, const void *alpha UNUSED,
                                    const void *a UNUSED, const void *b UNUSED, const void *beta UNUSED, void *c,
                                    int compute UNUSED, int algorithm UNUSED, size_t *bytes) {
    return row_buffer(bytes, c);
}
EXPORT int cusparseSpSM_bufferSize(void *h UNUSED, int op_a UNUSED, int op_b UNUSED, const void *alpha UNUSED,
                                   const void *a, const void *b UNUSED, void *c UNUSED, int compute UNUSED,
                                   int algorithm UNUSED, void *description UNUSED, size_t *bytes) {
    return row_buffer(bytes, a);
}
EXPORT int cusparseSpSV_bufferSize(void *h UNUSED, int op UNUSED, const void *alpha UNUSED, const void *a,
                                   const void *x UNUSED, void *y UNUSED, int compute UNUSED, int algorithm UNUSED,
                                   void *description UNUSED, size_t *bytes) {
    return row_buffer(bytes, a);
}
EXPORT int cusparseXcoosort_bufferSizeExt(void *h UNUSED, int m UNUSED, int n UNUSED, int entries,
                                          const int *rows UNUSED, const int *columns UNUSED, size_t *bytes) {
    NEEDS(bytes);
    *bytes = 16 * (size_t)entries;
    return 0;
}
EXPORT int cusparseXcsrsort_bufferSizeExt(void *h UNUSED, int m UNUSED, int n UNUSED, int entries,
                                          const int *rows UNUSED, const int *columns UNUSED, size_t *bytes) {
    NEEDS(bytes);
    *bytes = 16 * (size_t)entries;
    return 0;
}

#define ON_DEVICE(name) EXPORT int name(void) { library_call(#name); return 0; }
ON_DEVICE(cusparseSpMM) ON_DEVICE(cusparseSpMV) ON_DEVICE(cusparseSDDMM) ON_DEVICE(cusparseSDDMM_preprocess)
ON_DEVICE(cusparseSpSM_analysis) ON_DEVICE(cusparseSpSM_solve)
ON_DEVICE(cusparseSpSV_analysis) ON_DEVICE(cusparseSpSV_solve) ON_DEVICE(cusparseXcoo2csr)
ON_DEVICE(cusparseXcoosortByRow) ON_DEVICE(cusparseXcsrsort)
ON_DEVICE(cusparseCreateIdentityPermutation)

/* ---- sums and products of two sparse matrices -------------------------------------------------------------------- */

/* For a backward pass, in which other counts are read as well. */
static __thread int64_t entries_answer;
static __thread bool is_answering_entries;
EXPORT void foretell_answer_entries(int64_t entries, bool is_on) {
    entries_answer = entries, is_answering_entries = is_on;
}

static int64_t entries_of_result(int64_t at_most, const char *function, int64_t workspace) {
    int64_t answer = entries_answer;
    bool is_answered = is_answering_entries || answered_read(&answer);
    int64_t entries = is_answered && answer < at_most ? answer : at_most;
    count_launch();
    log_sparse(function, (SparseRecord){.workspace_bytes = workspace, .entries = entries, .device = current_device,
                                        .entries_are = is_answered ? ENTRIES_ARE_EXACT : ENTRIES_ARE_BOUND});
    return entries;
}

/* A real descriptor's count of entries cannot be set from outside: those of products are kept here until it is
 * destroyed. */
typedef struct Product { const void *matrix; int64_t entries; struct Product *next; } Product;
static Product *products;

static Product *product_of(const void *matrix) {
    Product *p = products;
    while (p && p->matrix != matrix) p = p->next;
    return p;
}

EXPORT int cusparseSpMatGetSize(const void *matrix, int64_t *rows, int64_t *columns, int64_t *entries) {
    NEEDS(matrix, rows, columns, entries);
    Size size = size_of(matrix);
    lock();
    Product *p = product_of(matrix);
    *rows = size.rows, *columns = size.columns, *entries = p ? p->entries : size.entries;
    unlock();
    return 0;
}

EXPORT int cusparseDestroySpMat(const void *matrix) {
    static int (*destroy)(const void *);
    if (!destroy) destroy = (int (*)(const void *))real_function("libcusparse.so.", "cusparseDestroySpMat");
    lock();
    for (Product **at = &products; *at; at = &(*at)->next)
        if ((*at)->matrix == matrix) {
            Product *gone = *at;
            *at = gone->next;
            free(gone);
            break;
        }
    unlock();
    return destroy ? destroy(matrix) : 0;
}

EXPORT int cusparseSpGEMM_workEstimation(void *h UNUSED, int op_a UNUSED, int op_b UNUSED, const void *alpha UNUSED,
                                         const void *a, const void *b UNUSED, const void *beta UNUSED, void *c UNUSED,
                                         int compute UNUSED, int algorithm UNUSED, void *description UNUSED,
                                         size_t *bytes, void *buffer) {
    return buffer ? 0 : row_buffer(bytes, a);
}

/* Called for the size of its buffer first, then with the buffer. An entry of A meets at most a whole row of B. */
EXPORT int cusparseSpGEMM_compute(void *h UNUSED, int op_a UNUSED, int op_b UNUSED, const void *alpha UNUSED,
                                  const void *a, const void *b, const void *beta UNUSED, void *c, int compute UNUSED,
                                  int algorithm UNUSED, void *description UNUSED, size_t *bytes, void *buffer) {
    NEEDS(bytes, a, b, c);
    if (!buffer) return row_buffer(bytes, a);
    Size left = size_of(a), right = size_of(b);
    int64_t in_a_row = right.entries < right.columns ? right.entries : right.columns;
    int64_t by_entries = left.entries * in_a_row, whole = left.rows * right.columns;
    int64_t at_most = by_entries < whole ? by_entries : whole;
    int64_t entries = entries_of_result(at_most, "cusparseSpGEMM_compute", (int64_t)*bytes);
    Product *new = allocate(sizeof *new);
    lock();
    Product *p = product_of(c);
    if (p) free(new);
    else *new = (Product){c, 0, products}, p = products = new;
    p->entries = entries;
    unlock();
    return 0;
}

EXPORT int cusparseXcsrgeam2Nnz(void *h UNUSED, int m, int n, const void *description_a UNUSED, int entries_a,
                                const int *rows_a UNUSED, const int *columns_a UNUSED, const void *description_b UNUSED,
                                int entries_b, const int *rows_b UNUSED, const int *columns_b UNUSED,
                                const void *description_c UNUSED, int *rows_c UNUSED, int *total,
                                void *workspace UNUSED) {
    NEEDS(total);
    int64_t most = (int64_t)entries_a + entries_b, whole = (int64_t)m * n;
    *total = (int)entries_of_result(most < whole ? most : whole, "cusparseXcsrgeam2Nnz", 0);
    return 0;
}

/* ---- one function for each type of number ------------------------------------------------------------------------ */

#define TYPED(t) \
    EXPORT int cusparse##t##csrgeam2_bufferSizeExt(void *h UNUSED, int m, int n UNUSED, const void *alpha UNUSED, \
                                                   const void *da UNUSED, int ea UNUSED, const void *va UNUSED, \
                                                   const int *ra UNUSED, const int *ca UNUSED, \
                                                   const void *beta UNUSED, const void *db UNUSED, int eb UNUSED, \
                                                   const void *vb UNUSED, const int *rb UNUSED, const int *cb UNUSED, \
                                                   const void *dc UNUSED, const void *vc UNUSED, const int *rc UNUSED, \
                                                   const int *cc UNUSED, size_t *bytes) { \
        NEEDS(bytes); \
        *bytes = 8 * ((size_t)m + 1); \
        return 0; \
    } \
    EXPORT int cusparse##t##bsrsv2_bufferSize(void *h UNUSED, int direction UNUSED, int op UNUSED, int rows, \
                                              int entries UNUSED, const void *d UNUSED, void *v UNUSED, \
                                              const int *r UNUSED, const int *c UNUSED, int block, void *info UNUSED, \
                                              int *bytes) { \
        NEEDS(bytes); \
        *bytes = 8 * (rows * block + 1); \
        return 0; \
    } \
    EXPORT int cusparse##t##bsrsm2_bufferSize(void *h UNUSED, int direction UNUSED, int op_a UNUSED, int op_x UNUSED, \
                                              int rows, int n UNUSED, int entries UNUSED, const void *d UNUSED, \
                                              void *v UNUSED, const int *r UNUSED, const int *c UNUSED, int block, \
                                              void *info UNUSED, int *bytes) { \
        NEEDS(bytes); \
        *bytes = 8 * (rows * block + 1); \
        return 0; \
    } \
    ON_DEVICE(cusparse##t##csrgeam2) ON_DEVICE(cusparse##t##bsrmm) ON_DEVICE(cusparse##t##bsrmv) \
    ON_DEVICE(cusparse##t##bsrsv2_analysis) ON_DEVICE(cusparse##t##bsrsv2_solve) \
    ON_DEVICE(cusparse##t##bsrsm2_analysis) ON_DEVICE(cusparse##t##bsrsm2_solve)
TYPED(S) TYPED(D) TYPED(C) TYPED(Z)
ON_DEVICE(cusparseSpGEMM_copy)

/* The real library wants a card for these. No pivot is zero: the run that works is estimated. */
#define SOLVER(kind) \
    EXPORT int cusparseCreate##kind##Info(void **info) { NEEDS(info); *info = allocate(16); return 0; } \
    EXPORT int cusparseDestroy##kind##Info(void *info) { free(info); return 0; }
SOLVER(Bsrsv2) SOLVER(Bsrsm2)
EXPORT int cusparseXbsrsv2_zeroPivot(void *h UNUSED, void *info UNUSED, int *position) {
    NEEDS(position);
    *position = -1;
    return 0;
}
EXPORT int cusparseXbsrsm2_zeroPivot(void *h UNUSED, void *info UNUSED, int *position) {
    NEEDS(position);
    *position = -1;
    return 0;
}
