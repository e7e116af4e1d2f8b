/* cuSPARSE. Descriptors need no GPU and stay the real library's; here is what wants a handle. Buffers are not documented: one word a
 * row for products, two words an entry for sorting, and the result carries a caveat. Products of two sparse matrices, whose size the
 * data decides, are not here. */
#include "vgpu.h"
#include <stdlib.h>

EXPORT int cusparseCreate(void **handle) { use_library(LIBRARY_CUBLAS); *handle = calloc(1, 16); return 0; }
EXPORT int cusparseDestroy(void *handle) { free(handle); return 0; }
EXPORT int cusparseSetStream(void *handle UNUSED, void *stream UNUSED) { return 0; }
EXPORT int cusparseSetPointerMode(void *handle UNUSED, int mode UNUSED) { return 0; }

static int64_t rows_of(const void *matrix) {
    static int (*size)(const void *, int64_t *, int64_t *, int64_t *);
    if (!size) size = (int (*)(const void *, int64_t *, int64_t *, int64_t *))real_function("libcusparse.so.", "cusparseSpMatGetSize");
    int64_t rows = 0, columns, entries;
    return size && !size(matrix, &rows, &columns, &entries) ? rows : 0;
}
static int row_buffer(size_t *bytes, const void *matrix) { *bytes = (size_t)(8 * (rows_of(matrix) + 1)); return 0; }

EXPORT int cusparseSpMM_bufferSize(void *h UNUSED, int op_a UNUSED, int op_b UNUSED, const void *alpha UNUSED, const void *a, const void *b UNUSED, const void *beta UNUSED,
                                   void *c UNUSED, int compute UNUSED, int algorithm UNUSED, size_t *bytes) { return row_buffer(bytes, a); }
EXPORT int cusparseSpMV_bufferSize(void *h UNUSED, int op UNUSED, const void *alpha UNUSED, const void *a, const void *x UNUSED, const void *beta UNUSED, void *y UNUSED,
                                   int compute UNUSED, int algorithm UNUSED, size_t *bytes) { return row_buffer(bytes, a); }
EXPORT int cusparseSDDMM_bufferSize(void *h UNUSED, int op_a UNUSED, int op_b UNUSED, const void *alpha UNUSED, const void *a UNUSED, const void *b UNUSED, const void *beta UNUSED,
                                    void *c, int compute UNUSED, int algorithm UNUSED, size_t *bytes) { return row_buffer(bytes, c); }
EXPORT int cusparseSpSM_bufferSize(void *h UNUSED, int op_a UNUSED, int op_b UNUSED, const void *alpha UNUSED, const void *a, const void *b UNUSED, void *c UNUSED, int compute UNUSED,
                                   int algorithm UNUSED, void *description UNUSED, size_t *bytes) { return row_buffer(bytes, a); }
EXPORT int cusparseSpSV_bufferSize(void *h UNUSED, int op UNUSED, const void *alpha UNUSED, const void *a, const void *x UNUSED, void *y UNUSED, int compute UNUSED, int algorithm UNUSED,
                                   void *description UNUSED, size_t *bytes) { return row_buffer(bytes, a); }
EXPORT int cusparseXcoosort_bufferSizeExt(void *h UNUSED, int m UNUSED, int n UNUSED, int entries, const int *rows UNUSED, const int *columns UNUSED, size_t *bytes) { *bytes = 16 * (size_t)entries; return 0; }
EXPORT int cusparseXcsrsort_bufferSizeExt(void *h UNUSED, int m UNUSED, int n UNUSED, int entries, const int *rows UNUSED, const int *columns UNUSED, size_t *bytes) { *bytes = 16 * (size_t)entries; return 0; }

#define ON_DEVICE(name) EXPORT int name(void) { library_call(#name, 0, 0, 0, 0, 0); return 0; }
ON_DEVICE(cusparseSpMM) ON_DEVICE(cusparseSpMV) ON_DEVICE(cusparseSDDMM) ON_DEVICE(cusparseSDDMM_preprocess) ON_DEVICE(cusparseSpSM_analysis) ON_DEVICE(cusparseSpSM_solve)
ON_DEVICE(cusparseSpSV_analysis) ON_DEVICE(cusparseSpSV_solve) ON_DEVICE(cusparseXcoo2csr) ON_DEVICE(cusparseXcoosortByRow) ON_DEVICE(cusparseXcsrsort)
ON_DEVICE(cusparseCreateIdentityPermutation)
