/* Memory pools: cudaMallocAsync. */
#include "memory/ranges.h"

/* One default pool a device. The real pool remaps pages, so it does not fragment: what it holds is the high water of
 * what is in use, in chunks; it gives back above the release threshold at a host synchronisation. */
#define POOL_CHUNK ((size_t)32 << 20)
typedef struct { size_t used, used_high, reserved, reserved_high; uint64_t release_threshold; } Pool;
static Pool pools[MAX_DEVICES];

void *pool_handle(int device) { return &pools[device]; }
static int pool_device(const void *pool) {
    const Pool *p = pool;
    return p >= pools && p < pools + MAX_DEVICES ? (int)(p - pools) : -1;
}

int pool_malloc(void **address, size_t bytes, const char *function) {
    if (!address) return ERROR_INVALID_VALUE;
    *address = NULL;
    if (bytes == 0) return SUCCESS;
    bytes = ROUND_UP(bytes, (size_t)512);
    int device = current_device, error = SUCCESS;
    Pool *pool = &pools[device];
    lock();
    size_t needed = ROUND_UP(pool->used + bytes, POOL_CHUNK);
    size_t growth = needed > pool->reserved ? needed - pool->reserved : 0;
    if (growth && !charge(device, growth)) error = out_of_memory(bytes, function);
    else if (!(*address = take_addresses_locked(bytes, 512, device, USE_POOL, 0))) {
        discharge(device, growth);
        error = out_of_memory(bytes, function);
    } else {
        pool->used += bytes;
        pool->reserved += growth;
        if (pool->used > pool->used_high) pool->used_high = pool->used;
        if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
        if (growth) allocated(function, (uintptr_t)*address, growth, device);
    }
    unlock();
    return error;
}

/* The addresses are device_free's. The pool keeps the memory until it is trimmed. */
void pool_takes_back_locked(int device, size_t bytes) { pools[device].used -= bytes; }

static void pool_trim_locked(int device, size_t keep) {
    Pool *pool = &pools[device];
    size_t floor = ROUND_UP(pool->used > keep ? pool->used : keep, POOL_CHUNK);
    if (floor >= pool->reserved) return;
    discharge(device, pool->reserved - floor);
    freed("cudaMemPoolTrimTo", 0, pool->reserved - floor, device);
    pool->reserved = floor;
}

int pool_trim(void *pool, size_t keep) {
    int device = pool_device(pool);
    if (device < 0) return ERROR_INVALID_VALUE;
    lock();
    pool_trim_locked(device, keep);
    unlock();
    return SUCCESS;
}

void pools_at_synchronization(int device) {
    lock();
    Pool *pool = &pools[device];
    if (pool->reserved > pool->release_threshold) pool_trim_locked(device, pool->release_threshold);
    unlock();
}

/* cudaMemPoolAttr: 1-3 reuse policies (int), 4 release threshold, 5-8 reserved now/high, used now/high (uint64). */
int pool_attribute(void *pool, int attribute, void *value, bool is_set) {
    static int reuse[4] = {0, 1, 1, 1};
    int device = pool_device(pool);
    if (device < 0 || attribute < 1 || attribute > 8 || !value) return ERROR_INVALID_VALUE;
    Pool *p = &pools[device];
    size_t *counters[] = {&p->reserved, &p->reserved_high, &p->used, &p->used_high};
    lock();
    if (attribute <= 3) {
        if (is_set) reuse[attribute] = *(int *)value;
        else *(int *)value = reuse[attribute];
    } else if (attribute == 4) {
        if (is_set) p->release_threshold = *(uint64_t *)value;
        else *(uint64_t *)value = p->release_threshold;
    } else if (is_set) { /* only a high-water mark may be set, and only to zero: it restarts from the present value */
        if (attribute == 6) p->reserved_high = p->reserved;
        if (attribute == 8) p->used_high = p->used;
    } else *(uint64_t *)value = *counters[attribute - 5];
    unlock();
    return SUCCESS;
}
