/* cuFFT. A plan's work area is not documented exactly: "the size of the data" is what NVIDIA's guide gives as
 * typical, and what is taken here; the result carries a caveat. */
#include "core/vgpu.h"

#define INVALID 4 /* CUFFT_INVALID_VALUE */

#define MAX_PLANS 4096
static bool is_used[MAX_PLANS]; /* cuFFT's handles are small integers */

EXPORT int cufftCreate(int *plan) {
    NEEDS(plan);
    lock();
    int i = 0;
    while (i < MAX_PLANS && is_used[i]) i++;
    if (i < MAX_PLANS) is_used[i] = true;
    unlock();
    *plan = i;
    return i < MAX_PLANS ? 0 : 2; /* CUFFT_ALLOC_FAILED */
}
EXPORT int cufftDestroy(int plan) {
    if (plan < 0 || plan >= MAX_PLANS) return 1; /* CUFFT_INVALID_PLAN */
    lock();
    is_used[plan] = false;
    unlock();
    return 0;
}
EXPORT int cufftSetAutoAllocation(int plan UNUSED, int on) {
    return on ? unimplemented("cufftSetAutoAllocation (on)", 16) : 0;
}
EXPORT int cufftSetStream(int plan UNUSED, void *stream UNUSED) { return 0; }
EXPORT int cufftSetWorkArea(int plan UNUSED, void *area UNUSED) { return 0; }

/* cudaDataType: 0/4 real/complex float, 1/5 double, 2/6 half. */
static size_t complex_bytes(int type) { return type % 4 == 0 ? 8 : type % 4 == 1 ? 16 : 4; }

EXPORT int cufftXtMakePlanMany(int plan UNUSED, int rank, long long *n, long long *inembed UNUSED,
                               long long istride UNUSED, long long idist UNUSED, int input_type UNUSED,
                               long long *onembed UNUSED, long long ostride UNUSED, long long odist UNUSED,
                               int output_type, long long batch, size_t *work, int execution_type UNUSED) {
    NEEDS(n, work);
    if (rank < 1 || rank > 3) return INVALID;
    size_t elements = (size_t)batch;
    for (int i = 0; i < rank; i++) elements *= (size_t)n[i];
    *work = elements * complex_bytes(output_type);
    return 0;
}
EXPORT int cufftXtExec(int plan UNUSED, void *input UNUSED, void *output UNUSED, int direction UNUSED) {
    library_call("cufftXtExec");
    return 0;
}
