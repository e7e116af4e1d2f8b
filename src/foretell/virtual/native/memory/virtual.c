/* The driver's virtual memory, which expandable segments use: cuMemAddressReserve, cuMemCreate, cuMemMap. */
#include "memory/ranges.h"
#include <stdlib.h>

typedef struct {
    size_t bytes;
    int device, mappings;
    bool is_released, is_imported;
    uintptr_t at;
    Ticket ticket;
} Physical;

int address_reserve(uintptr_t *address, size_t bytes, size_t alignment) {
    if (!bytes || bytes % GRANULARITY) return ERROR_INVALID_VALUE;
    if (alignment < GRANULARITY) alignment = GRANULARITY;
    lock();
    *address = (uintptr_t)take_addresses_locked(bytes, alignment, current_device, USE_RESERVED, 0);
    unlock();
    return *address ? SUCCESS : ERROR_OUT_OF_MEMORY;
}

int address_free(uintptr_t address, size_t bytes) {
    lock();
    Range *range = find_range(&taken, address);
    bool is_valid = range && range->start == address && range->bytes == bytes && range->use == USE_RESERVED;
    if (is_valid) give_back_locked(range);
    unlock();
    return is_valid ? SUCCESS : ERROR_INVALID_VALUE;
}

int physical_create(uint64_t *handle, size_t bytes, int device) {
    if (!bytes || bytes % GRANULARITY) return ERROR_INVALID_VALUE;
    int error = SUCCESS;
    lock();
    if (!charge(device, bytes)) error = out_of_memory(bytes, "cuMemCreate");
    else {
        Physical *p = allocate(sizeof *p);
        p->bytes = bytes, p->device = device;
        *handle = (uint64_t)(uintptr_t)p;
        allocated("cuMemCreate", (uintptr_t)p, bytes, device);
    }
    unlock();
    return error;
}

static void physical_drop_locked(Physical *p) {
    if (!p->is_released || p->mappings) return;
    if (!p->is_imported) {
        discharge(p->device, p->bytes);
        freed("cuMemRelease", (uintptr_t)p, p->bytes, p->device);
    }
    free(p);
}

int physical_release(uint64_t handle) {
    Physical *p = (Physical *)(uintptr_t)handle;
    if (!p) return ERROR_INVALID_VALUE;
    lock();
    p->is_released = true;
    physical_drop_locked(p);
    unlock();
    return SUCCESS;
}

int address_map(uintptr_t address, size_t bytes, uint64_t handle) {
    Physical *p = (Physical *)(uintptr_t)handle;
    int error = SUCCESS;
    lock();
    Range *range = find_range(&taken, address);
    size_t next = range_position(&mapped, address);
    bool is_reserved = range && range->use == USE_RESERVED && address + bytes <= range->start + range->bytes;
    bool is_mapped = next < mapped.count && mapped.items[next].start < address + bytes;
    if (!p || bytes != p->bytes || !is_reserved || is_mapped)
        error = ERROR_INVALID_VALUE;
    else if (p->is_imported && !map_ticket_locked(&p->ticket, address)) error = ERROR_INVALID_HANDLE;
    else {
        if (!p->mappings++) p->at = address;
        add_range(&mapped, (Range){address, bytes, p->device, USE_RESERVED, (size_t)p});
    }
    unlock();
    return error;
}

int address_unmap(uintptr_t address, size_t bytes) {
    if (!bytes || address + bytes < address) return ERROR_INVALID_VALUE;
    lock();
    for (uintptr_t at = address; at < address + bytes;) {
        Range *range = find_range(&mapped, at);
        if (!range || range->start != at || range->start + range->bytes > address + bytes) {
            unlock();
            return ERROR_INVALID_VALUE;
        }
        Physical *p = (Physical *)range->charged;
        at += range->bytes;
        unshare_locked(range->start, range->bytes);
        drop_range(&mapped, range);
        p->mappings--;
        physical_drop_locked(p);
    }
    drop_pages(address, bytes);
    unlock();
    forget(address, bytes);
    return SUCCESS;
}

int physical_of(uintptr_t address, uint64_t *handle) {
    lock();
    Range *range = find_range(&mapped, address);
    if (range) *handle = range->charged;
    unlock();
    return range ? SUCCESS : ERROR_INVALID_VALUE;
}

/* ---- shared with another process (ipc.c) ------------------------------------------------------------------- */

int physical_ticket(uint64_t handle, Ticket *ticket) {
    Physical *p = (Physical *)(uintptr_t)handle;
    if (!p || p->is_imported) return ERROR_INVALID_VALUE;
    lock();
    bool is_mapped = p->mappings > 0; /* the bytes live where it is mapped */
    bool is_made = is_mapped && make_ticket_locked(ticket, p->at, p->bytes, p->device);
    unlock();
    if (!is_mapped)
        return unimplemented("cuMemExportToShareableHandle (of memory that is not mapped)", ERROR_NOT_SUPPORTED);
    return is_made ? SUCCESS : ERROR_INVALID_VALUE;
}

int physical_import(uint64_t *handle, const Ticket *ticket, int device) {
    Physical *p = allocate(sizeof *p);
    *p = (Physical){.bytes = ticket->bytes, .device = device, .is_imported = true, .ticket = *ticket};
    *handle = (uint64_t)(uintptr_t)p;
    return SUCCESS;
}
