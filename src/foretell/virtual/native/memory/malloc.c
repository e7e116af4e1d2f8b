/* cudaMalloc, which takes 2 MiB pages against the card's capacity, and managed memory. */
#include "memory/ranges.h"

int out_of_memory(size_t bytes, const char *function) {
    log_out_of_memory(function, (OutOfMemoryRecord){
        .requested_bytes = (int64_t)bytes, .free_bytes = (int64_t)device_free_bytes(current_device),
        .device = current_device});
    return ERROR_OUT_OF_MEMORY;
}

void allocated(const char *function, uintptr_t address, size_t bytes, int device) {
    log_allocation(function, (AllocationRecord){
        .address = (int64_t)address, .bytes = (int64_t)bytes, .device = device,
        .in_use = (int64_t)device_state(device)->used, .card = physical_index(device)});
}

void freed(const char *function, uintptr_t address, size_t bytes, int device) {
    log_free(function, (FreeRecord){
        .address = (int64_t)address, .bytes = (int64_t)bytes, .device = device,
        .in_use = (int64_t)device_state(device)->used});
}

int device_malloc(void **address, size_t bytes, const char *function) {
    if (!address) return ERROR_INVALID_VALUE;
    *address = NULL;
    if (bytes == 0) return SUCCESS;
    size_t pages = ROUND_UP(bytes, GRANULARITY);
    int error = SUCCESS, device = current_device;
    lock();
    if (bytes > (size_t)card()->total || !charge(device, pages)) error = out_of_memory(bytes, function);
    else if (!(*address = take_addresses_locked(pages, GRANULARITY, device, USE_MALLOC, pages))) {
        discharge(device, pages);
        error = out_of_memory(bytes, function);
    } else allocated(function, (uintptr_t)*address, pages, device);
    unlock();
    return error;
}

static const char MANAGED[] = "cudaMallocManaged";

int device_free(void *address, const char *function) {
    if (!address) return SUCCESS;
    lock();
    Range *range = find_range(&taken, (uintptr_t)address);
    if (!range || range->start != (uintptr_t)address || range->use == USE_RESERVED || range->use == USE_IMPORTED) {
        unlock();
        return ERROR_INVALID_VALUE;
    }
    Range was = *range;
    unshare_locked(was.start, was.bytes);
    give_back_locked(range);
    if (was.use == USE_POOL) pool_takes_back_locked(was.device, was.bytes);
    if (was.charged) discharge(was.device, was.charged);
    if (was.charged) freed(function, was.start, was.charged, was.device);
    if (was.use == USE_MANAGED) freed(MANAGED, was.start, was.bytes, was.device);
    drop_pages(was.start, was.bytes);
    unlock();
    forget(was.start, was.bytes);
    return SUCCESS;
}

/* Managed memory moves to the card when a kernel touches it and gives way when the card is full, so it is logged and
 * not charged. */
int managed_malloc(void **address, size_t bytes) {
    if (!address || !bytes) return ERROR_INVALID_VALUE;
    size_t pages = ROUND_UP(bytes, GRANULARITY);
    lock();
    *address = take_addresses_locked(pages, GRANULARITY, current_device, USE_MANAGED, 0);
    if (*address) make_writable((uintptr_t)*address, bytes);
    if (*address) allocated(MANAGED, (uintptr_t)*address, pages, current_device);
    unlock();
    return *address ? SUCCESS : ERROR_OUT_OF_MEMORY;
}

/* Where managed pages are is not modelled, so a wish about it changes nothing. */
int managed_advice(const void *address) { return is_managed(address) ? SUCCESS : ERROR_INVALID_VALUE; }

/* ---- what lies at an address ------------------------------------------------------------------------------ */

bool range_of(const void *address, uintptr_t *base, size_t *bytes) {
    lock();
    Range *range = find_range(&taken, (uintptr_t)address);
    if (range && range->use == USE_RESERVED) range = find_range(&mapped, (uintptr_t)address);
    if (range) *base = range->start, *bytes = range->bytes;
    unlock();
    return range != NULL;
}

int device_of(const void *address) {
    if ((uintptr_t)address < arena.start || (uintptr_t)address >= arena.start + arena.bytes) return -1;
    lock();
    Range *range = find_range(&taken, (uintptr_t)address);
    if (range && range->use == USE_RESERVED) range = find_range(&mapped, (uintptr_t)address);
    int device = range ? range->device : -1;
    unlock();
    return device;
}

bool is_managed(const void *address) {
    lock();
    Range *range = find_range(&taken, (uintptr_t)address);
    bool answer = range && range->use == USE_MANAGED;
    unlock();
    return answer;
}
