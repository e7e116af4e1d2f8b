/* Devices, their capacity, the lock, and what happens at fork. */
#include "core/vgpu.h"
#include <pthread.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Device devices[MAX_DEVICES];
__thread int current_device = 0;
__thread int last_error = SUCCESS;

void lock(void) { pthread_mutex_lock(&mutex); }
void unlock(void) { pthread_mutex_unlock(&mutex); }

/* A DataLoader worker is forked while another thread may hold the lock: take it around the fork. */
__attribute__((constructor)) static void guard_fork(void) { pthread_atfork(lock, unlock, unlock); }

int fail(int error) {
    if (error != SUCCESS) last_error = error;
    return error;
}

Device *device_state(int device) {
    devices[device].has_context = true;
    return &devices[device];
}

bool has_context(int device) { return devices[device].has_context; }

size_t device_free_bytes(int device) {
    Device *d = device_state(device);
    size_t taken = (size_t)card()->context + d->library_bytes + d->used;
    return taken < (size_t)card()->total ? (size_t)card()->total - taken : 0;
}

bool charge(int device, size_t bytes) {
    if (bytes > device_free_bytes(device)) return false;
    Device *d = device_state(device);
    d->used += bytes;
    if (d->used > d->peak_used) d->peak_used = d->used;
    return true;
}

void discharge(int device, size_t bytes) { devices[device].used -= bytes; }

/* The first handle of a library (or the first batch normalization) loads its code onto the card; how much is
 * calibrated outside and handed in. A card too full for it is not an error here: the real libraries fail later, at a
 * launch, and the margin is within the interval. */
void use_library(enum Library library) {
    static const char *FUNCTIONS[NUM_LIBRARIES] = {
        "cublasCreate", "cudnnCreate", "ncclCommInitRank", "cudnnBatchNormalization"};
    const int64_t bytes[NUM_LIBRARIES] = {
        card()->cublas_library, card()->cudnn_library, card()->nccl_library, card()->batch_norm_library};
    lock();
    Device *d = device_state(current_device);
    bool is_first = !(d->libraries & 1u << library);
    if (is_first) {
        d->libraries |= 1u << library;
        d->library_bytes += (size_t)bytes[library];
    }
    unlock();
    if (!is_first) return;
    log_library_loaded(FUNCTIONS[library], (LibraryLoadedRecord){
        .code_bytes = bytes[library], .device = current_device});
}

/* For inside and the tests. */
EXPORT int foretell_device_usage(int device, uint64_t *used, uint64_t *peak_used, uint64_t *library_bytes,
                                 uint32_t *libraries) {
    if (device < 0 || device >= MAX_DEVICES || !devices[device].has_context) return ERROR_INVALID_DEVICE;
    lock();
    *used = devices[device].used;
    *peak_used = devices[device].peak_used;
    *library_bytes = devices[device].library_bytes;
    *libraries = devices[device].libraries;
    unlock();
    return SUCCESS;
}
