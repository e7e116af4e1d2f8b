/* What the files of memory/ share: ranges of addresses and the arena they lie in. Call all of it with the lock held. */
#ifndef FORETELL_RANGES_H
#define FORETELL_RANGES_H
#include "memory/memory.h"

#define ROUND_UP(n, to) (((n) + (to) - 1) / (to) * (to))
#define PAGE ((size_t)4096)

enum Use { USE_MALLOC, USE_POOL, USE_RESERVED, USE_MANAGED, USE_IMPORTED };
typedef struct { uintptr_t start; size_t bytes; int device; enum Use use; size_t charged; } Range;
typedef struct { Range *items; size_t count, room; } Ranges;

extern Ranges taken;   /* addresses in use, whatever for */
extern Ranges mapped;  /* parts of a USE_RESERVED range that cuMemMap has given memory; .charged is the handle */

size_t range_position(const Ranges *r, uintptr_t address); /* of the first range that ends after the address */
Range *find_range(const Ranges *r, uintptr_t address);     /* NULL: in none */
void add_range(Ranges *r, Range item);
void drop_range(Ranges *r, Range *item);

/* NULL: none left */
void *take_addresses_locked(size_t bytes, size_t alignment, int device, enum Use use, size_t charged);
void give_back_locked(Range *range);
void make_writable(uintptr_t address, size_t bytes);
void drop_pages(uintptr_t address, size_t bytes);

/* Logs it, and returns CUDA's error. */
int out_of_memory(size_t bytes, const char *function);
/* Logs it. */
void allocated(const char *function, uintptr_t address, size_t bytes, int device);
void freed(const char *function, uintptr_t address, size_t bytes, int device);
void pool_takes_back_locked(int device, size_t bytes);

#endif
