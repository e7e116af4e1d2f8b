/* What memory.c offers to the runtime and the driver beyond vgpu.h. */
#ifndef FORETELL_MEMORY_H
#define FORETELL_MEMORY_H
#include "vgpu.h"

int managed_malloc(void **address, size_t bytes);
bool is_managed(const void *address);

void *pool_handle(int device);
int pool_malloc(void **address, size_t bytes, const char *function);
int pool_trim(void *pool, size_t keep);
int pool_attribute(void *pool, int attribute, void *value, bool is_set);
void pools_at_synchronization(int device);

int address_reserve(uintptr_t *address, size_t bytes, size_t alignment);
int address_free(uintptr_t address, size_t bytes);
int address_map(uintptr_t address, size_t bytes, uint64_t handle);
int address_unmap(uintptr_t address, size_t bytes);
int physical_create(uint64_t *handle, size_t bytes, int device);
int physical_release(uint64_t handle);
int physical_of(uintptr_t address, uint64_t *handle);

int pinned_malloc(void **address, size_t bytes);
int pinned_free(void *address);
int pinned_register(void *address, size_t bytes);
int pinned_unregister(void *address);

#endif
