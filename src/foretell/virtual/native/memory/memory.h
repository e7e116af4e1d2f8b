/* What memory/ offers to the runtime and the driver beyond vgpu.h. */
#ifndef FORETELL_MEMORY_H
#define FORETELL_MEMORY_H
#include "core/vgpu.h"

typedef struct {
    uintptr_t start; size_t bytes;      /* device addresses */
    uintptr_t map; size_t map_bytes;    /* all that is mapped: the above, then one bit for each byte of it */
    char *known_bits;
    int file;                           /* behind it; -1: private pages, and no known_bits */
} Arena;
extern Arena arena;

int managed_malloc(void **address, size_t bytes);
bool is_managed(const void *address);
int managed_advice(const void *address);

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

/* Memory of one process that another one maps. A ticket is what travels between them, in a handle or a file. */
typedef struct { uint32_t magic; int32_t pid, file, device; uint64_t inode, offset, bits_offset, bytes; } Ticket;

typedef struct { char bytes[64]; } IpcHandle;
EXPORT int cuIpcGetMemHandle(IpcHandle *handle, uintptr_t address);
EXPORT int cuIpcOpenMemHandle_v2(uintptr_t *address, IpcHandle handle, unsigned flags);
EXPORT int cuIpcCloseMemHandle(uintptr_t address);
EXPORT int cuMemExportToShareableHandle(void *descriptor, uint64_t handle, int type, unsigned long long flags);
EXPORT int cuMemImportFromShareableHandle(uint64_t *handle, void *descriptor, int type);

int physical_ticket(uint64_t handle, Ticket *ticket);
int physical_import(uint64_t *handle, const Ticket *ticket, int device);

bool make_ticket_locked(Ticket *ticket, uintptr_t start, size_t bytes, int device); /* ipc.c, as both below */
bool map_ticket_locked(const Ticket *ticket, uintptr_t at);
void unshare_locked(uintptr_t start, size_t bytes);

int pinned_malloc(void **address, size_t bytes);
int pinned_free(void *address);
int pinned_register(void *address, size_t bytes);
int pinned_unregister(void *address);

#endif
