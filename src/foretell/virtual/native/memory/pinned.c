/* Pinned host memory: cudaHostAlloc and cudaHostRegister. */
#include "memory/ranges.h"
#include <sys/mman.h>

static Ranges pinned;

int pinned_malloc(void **address, size_t bytes) {
    if (!address) return ERROR_INVALID_VALUE;
    *address = NULL;
    if (!bytes) return SUCCESS;
    size_t pages = ROUND_UP(bytes, PAGE);
    void *p = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return ERROR_OUT_OF_MEMORY;
    lock();
    add_range(&pinned, (Range){(uintptr_t)p, pages, current_device, USE_MALLOC, pages});
    unlock();
    *address = p;
    return SUCCESS;
}

int pinned_free(void *address) {
    if (!address) return SUCCESS;
    lock();
    Range *range = find_range(&pinned, (uintptr_t)address);
    bool is_valid = range && range->start == (uintptr_t)address && range->charged;
    size_t bytes = is_valid ? range->bytes : 0;
    if (is_valid) drop_range(&pinned, range);
    unlock();
    if (!is_valid) return ERROR_INVALID_VALUE;
    munmap(address, bytes);
    return SUCCESS;
}

int pinned_register(void *address, size_t bytes) {
    if (!address || !bytes) return ERROR_INVALID_VALUE;
    lock();
    bool is_taken = find_range(&pinned, (uintptr_t)address) != NULL;
    if (!is_taken) add_range(&pinned, (Range){(uintptr_t)address, bytes, current_device, USE_MALLOC, 0});
    unlock();
    return is_taken ? 712 /* cudaErrorHostMemoryAlreadyRegistered */ : SUCCESS;
}

int pinned_unregister(void *address) {
    lock();
    Range *range = find_range(&pinned, (uintptr_t)address);
    bool is_valid = range && range->start == (uintptr_t)address && !range->charged;
    if (is_valid) drop_range(&pinned, range);
    unlock();
    return is_valid ? SUCCESS : 713 /* cudaErrorHostMemoryNotRegistered */;
}

bool is_pinned(const void *address) {
    lock();
    bool answer = find_range(&pinned, (uintptr_t)address) != NULL;
    unlock();
    return answer;
}
