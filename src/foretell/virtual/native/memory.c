/* Device memory: addresses without pages. cudaMalloc takes 2 MiB pages against the card's capacity; the bytes behind an
 * address exist only where a real copy has put something. Also memory pools (cudaMallocAsync), the driver's virtual-memory
 * functions (expandable segments), pinned host memory, and copies. */
#include "memory.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define ROUND_UP(n, to) (((n) + (to) - 1) / (to) * (to))
#define PAGE ((size_t)4096)

/* ---- address ranges: sorted arrays, looked up by bisection ------------------------------------------------------ */

enum Use { USE_MALLOC, USE_POOL, USE_RESERVED, USE_MANAGED, USE_IMPORTED };
typedef struct { uintptr_t start; size_t bytes; int device; enum Use use; size_t charged; } Range;
typedef struct { Range *items; size_t count, room; } Ranges;

static Ranges taken;   /* addresses in use, whatever for */
static Ranges mapped;  /* parts of a USE_RESERVED range that cuMemMap has given memory; .charged is the handle */
static Ranges pinned;  /* host memory from cudaHostAlloc and cudaHostRegister */

static size_t position(const Ranges *r, uintptr_t address) { /* the first range that ends after the address */
    size_t low = 0, high = r->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (r->items[middle].start + r->items[middle].bytes <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static Range *find(const Ranges *r, uintptr_t address) {
    size_t i = position(r, address);
    return i < r->count && r->items[i].start <= address ? &r->items[i] : NULL;
}

static void add(Ranges *r, Range item) {
    size_t at = position(r, item.start);
    if (r->count == r->room) r->items = realloc(r->items, sizeof *r->items * (r->room = r->room ? 2 * r->room : 256));
    memmove(r->items + at + 1, r->items + at, sizeof *r->items * (r->count++ - at));
    r->items[at] = item;
}

static void drop(Ranges *r, Range *item) {
    size_t at = (size_t)(item - r->items);
    memmove(item, item + 1, sizeof *item * (--r->count - at));
}

/* ---- the arena ---------------------------------------------------------------------------------------------------- */

Arena arena = {.file = -1};
static bool is_lazy;            /* pages become writable one copy at a time: hosts that forbid overcommit */
static size_t lowest_gap_index; /* taken[0 .. this) has no gap */

/* A file without a name: other processes can map parts of it (ipc.c). It takes no more memory than private pages would. */
static int arena_file(size_t bytes) {
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && bytes > limit.rlim_cur) return -1; /* growing it would kill the process */
    int file = memfd_create("foretell-device-memory", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)bytes)) close(file), file = -1;
    return file;
}

/* Where there can be no such file the arena is private, and memory of this process cannot be shared with others. */
static bool map_arena(size_t bytes, bool is_shared, bool lazy) {
    size_t all = bytes + (is_shared ? bytes / 8 : 0); /* one bit a byte behind it: what is known of shared memory */
    int file = is_shared ? arena_file(all) : -1;
    if (is_shared && file < 0) return false;
    int protection = lazy ? PROT_NONE : PROT_READ | PROT_WRITE;
    char *p = mmap(NULL, all, protection, (is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_NORESERVE, file, 0);
    if (p == MAP_FAILED) {
        if (is_shared) close(file);
        return false;
    }
    madvise(p, all, MADV_NOHUGEPAGE); /* one byte must not cost 2 MiB */
    madvise(p, all, MADV_DONTDUMP);
    uintptr_t start = ROUND_UP((uintptr_t)p, GRANULARITY);
    arena = (Arena){start, bytes - GRANULARITY, (uintptr_t)p, all, is_shared ? p + bytes : NULL, file};
    is_lazy = lazy;
    return true;
}

/* Address space costs nothing; a little of it is tried where the host limits it (ulimit -v). */
static bool reserve_arena(void) {
    size_t bytes = ROUND_UP(card()->arena ? (size_t)card()->arena : (size_t)4 << 40, GRANULARITY);
    for (; bytes >= (size_t)card()->total; bytes = ROUND_UP(bytes / 2, GRANULARITY))
        if (map_arena(bytes, true, false) || map_arena(bytes, false, false) || map_arena(bytes, false, true)) return true;
    fprintf(stderr, "foretell: cannot reserve %lld bytes of address space for the virtual GPU's memory; raise 'ulimit -v'\n",
            (long long)card()->total);
    return false;
}

/* A forked child goes on with a copy of its own: what it writes must not reach its parent. */
static void keep_arena_private(void) {
    if (arena.file < 0) return;
    mmap((void *)arena.map, arena.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, arena.file, 0);
    close(arena.file);
    arena.file = -1;
}
__attribute__((constructor)) static void guard_fork(void) { pthread_atfork(NULL, NULL, keep_arena_private); }

/* Lowest address first: PyTorch's pools order equal blocks by address, and a real driver's addresses ascend. */
static void *take_addresses_locked(size_t bytes, size_t alignment, int device, enum Use use, size_t charged) {
    if (!arena.start && !reserve_arena()) return NULL;
    uintptr_t at = lowest_gap_index ? taken.items[lowest_gap_index - 1].start + taken.items[lowest_gap_index - 1].bytes : arena.start;
    size_t i = lowest_gap_index;
    for (;; i++) {
        at = ROUND_UP(at, alignment);
        if (i == taken.count || at + bytes <= taken.items[i].start) break;
        at = taken.items[i].start + taken.items[i].bytes;
    }
    if (at + bytes > arena.start + arena.bytes) return NULL;
    add(&taken, (Range){at, bytes, device, use, charged});
    while (lowest_gap_index < taken.count) {
        uintptr_t end = lowest_gap_index ? taken.items[lowest_gap_index - 1].start + taken.items[lowest_gap_index - 1].bytes : arena.start;
        if (taken.items[lowest_gap_index].start != end) break;
        lowest_gap_index++;
    }
    return (void *)at;
}

static void give_back_locked(Range *range) {
    size_t index = (size_t)(range - taken.items);
    if (index < lowest_gap_index) lowest_gap_index = index;
    drop(&taken, range);
}

static void make_writable(uintptr_t address, size_t bytes) {
    if (!is_lazy || !bytes) return;
    uintptr_t start = address & ~(PAGE - 1);
    mprotect((void *)start, ROUND_UP(address + bytes - start, PAGE), PROT_READ | PROT_WRITE);
}

/* Gives pages back to the host; the addresses read as zero again. */
static void drop_pages(uintptr_t address, size_t bytes) {
    uintptr_t start = ROUND_UP(address, PAGE), end = (address + bytes) & ~(PAGE - 1);
    if (end > start) madvise((void *)start, end - start, arena.file >= 0 ? MADV_REMOVE : MADV_DONTNEED);
}

static int out_of_memory(size_t bytes, const char *function) {
    log_event(LOG_OUT_OF_MEMORY, function, (int64_t)bytes, (int64_t)device_free_bytes(current_device), current_device, 0, 0, 0);
    return ERROR_OUT_OF_MEMORY;
}

static void log_use(enum LogKind kind, const char *function, uintptr_t address, size_t bytes, int device) {
    log_event(kind, function, (int64_t)address, (int64_t)bytes, device, (int64_t)device_state(device)->used, 0, 0);
}

/* ---- cudaMalloc ---------------------------------------------------------------------------------------------------- */

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
    } else log_use(LOG_ALLOCATION, function, (uintptr_t)*address, pages, device);
    unlock();
    return error;
}

static int pool_free(void *address, const char *function);
static const char MANAGED[] = "cudaMallocManaged";

int device_free(void *address, const char *function) {
    if (!address) return SUCCESS;
    lock();
    Range *range = find(&taken, (uintptr_t)address);
    if (!range || range->start != (uintptr_t)address || range->use == USE_RESERVED || range->use == USE_IMPORTED) {
        unlock();
        return ERROR_INVALID_VALUE;
    }
    if (range->use == USE_POOL) { unlock(); return pool_free(address, function); }
    Range was = *range;
    unshare_locked(was.start, was.bytes);
    give_back_locked(range);
    if (was.charged) discharge(was.device, was.charged);
    if (was.charged) log_use(LOG_FREE, function, was.start, was.charged, was.device);
    if (was.use == USE_MANAGED) log_use(LOG_FREE, MANAGED, was.start, was.bytes, was.device);
    drop_pages(was.start, was.bytes);
    unlock();
    forget(was.start, was.bytes);
    return SUCCESS;
}

/* Managed memory moves to the card when a kernel touches it and gives way when the card is full, so it is logged and not charged. */
int managed_malloc(void **address, size_t bytes) {
    if (!address || !bytes) return ERROR_INVALID_VALUE;
    size_t pages = ROUND_UP(bytes, GRANULARITY);
    lock();
    *address = take_addresses_locked(pages, GRANULARITY, current_device, USE_MANAGED, 0);
    if (*address) make_writable((uintptr_t)*address, bytes);
    if (*address) log_use(LOG_ALLOCATION, MANAGED, (uintptr_t)*address, pages, current_device);
    unlock();
    return *address ? SUCCESS : ERROR_OUT_OF_MEMORY;
}

/* Where managed pages are is not modelled, so a wish about it changes nothing. */
int managed_advice(const void *address) { return is_managed(address) ? SUCCESS : ERROR_INVALID_VALUE; }

bool range_of(const void *address, uintptr_t *base, size_t *bytes) {
    lock();
    Range *range = find(&taken, (uintptr_t)address);
    if (range && range->use == USE_RESERVED) range = find(&mapped, (uintptr_t)address);
    if (range) *base = range->start, *bytes = range->bytes;
    unlock();
    return range != NULL;
}

int device_of(const void *address) {
    if ((uintptr_t)address < arena.start || (uintptr_t)address >= arena.start + arena.bytes) return -1;
    lock();
    Range *range = find(&taken, (uintptr_t)address);
    if (range && range->use == USE_RESERVED) range = find(&mapped, (uintptr_t)address);
    int device = range ? range->device : -1;
    unlock();
    return device;
}

bool is_managed(const void *address) {
    lock();
    Range *range = find(&taken, (uintptr_t)address);
    bool answer = range && range->use == USE_MANAGED;
    unlock();
    return answer;
}

/* ---- memory pools: cudaMallocAsync ---------------------------------------------------------------------------------- */

/* One default pool a device. The real pool remaps pages, so it does not fragment: what it holds is the high water of what
 * is in use, in chunks; it gives back above the release threshold at a host synchronisation. */
#define POOL_CHUNK ((size_t)32 << 20)
typedef struct { size_t used, used_high, reserved, reserved_high; uint64_t release_threshold; } Pool;
static Pool pools[MAX_DEVICES];

void *pool_handle(int device) { return &pools[device]; }
static int pool_device(const void *pool) {
    const Pool *p = pool;
    return p >= pools && p < pools + MAX_DEVICES ? (int)(p - pools) : -1;
}

int pool_malloc(void **address, size_t bytes, const char *function) {
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
        if (growth) log_use(LOG_ALLOCATION, function, (uintptr_t)*address, growth, device);
    }
    unlock();
    return error;
}

static int pool_free(void *address, const char *function UNUSED) {
    lock();
    Range *range = find(&taken, (uintptr_t)address);
    Range was = *range;
    pools[was.device].used -= was.bytes;
    give_back_locked(range);
    drop_pages(was.start, was.bytes);
    unlock();
    forget(was.start, was.bytes);
    return SUCCESS;
}

static void pool_trim_locked(int device, size_t keep) {
    Pool *pool = &pools[device];
    size_t floor = ROUND_UP(pool->used > keep ? pool->used : keep, POOL_CHUNK);
    if (floor >= pool->reserved) return;
    discharge(device, pool->reserved - floor);
    log_use(LOG_FREE, "cudaMemPoolTrimTo", 0, pool->reserved - floor, device);
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
    if (pools[device].reserved > pools[device].release_threshold) pool_trim_locked(device, pools[device].release_threshold);
    unlock();
}

/* cudaMemPoolAttr: 1-3 reuse policies (int), 4 release threshold, 5-8 reserved now/high, used now/high (uint64). */
int pool_attribute(void *pool, int attribute, void *value, bool is_set) {
    static int reuse[4] = {0, 1, 1, 1};
    int device = pool_device(pool);
    if (device < 0 || attribute < 1 || attribute > 8) return ERROR_INVALID_VALUE;
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

/* ---- the driver's virtual memory: cuMemAddressReserve, cuMemCreate, cuMemMap ------------------------------------------ */

typedef struct { size_t bytes; int device, mappings; bool is_released, is_imported; uintptr_t at; Ticket ticket; } Physical;

int address_reserve(uintptr_t *address, size_t bytes, size_t alignment) {
    if (!bytes || bytes % GRANULARITY) return ERROR_INVALID_VALUE;
    lock();
    *address = (uintptr_t)take_addresses_locked(bytes, alignment > GRANULARITY ? alignment : GRANULARITY, current_device, USE_RESERVED, 0);
    unlock();
    return *address ? SUCCESS : ERROR_OUT_OF_MEMORY;
}

int address_free(uintptr_t address, size_t bytes) {
    lock();
    Range *range = find(&taken, address);
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
        Physical *p = calloc(1, sizeof *p);
        p->bytes = bytes, p->device = device;
        *handle = (uint64_t)(uintptr_t)p;
        log_use(LOG_ALLOCATION, "cuMemCreate", (uintptr_t)p, bytes, device);
    }
    unlock();
    return error;
}

static void physical_drop_locked(Physical *p) {
    if (!p->is_released || p->mappings) return;
    if (!p->is_imported) {
        discharge(p->device, p->bytes);
        log_use(LOG_FREE, "cuMemRelease", (uintptr_t)p, p->bytes, p->device);
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
    Range *range = find(&taken, address);
    Range *next = position(&mapped, address) < mapped.count ? &mapped.items[position(&mapped, address)] : NULL;
    if (!p || bytes != p->bytes || !range || range->use != USE_RESERVED || address + bytes > range->start + range->bytes ||
        (next && next->start < address + bytes))
        error = ERROR_INVALID_VALUE;
    else if (p->is_imported && !map_ticket_locked(&p->ticket, address)) error = ERROR_INVALID_HANDLE;
    else {
        if (!p->mappings++) p->at = address;
        add(&mapped, (Range){address, bytes, p->device, USE_RESERVED, (size_t)p});
    }
    unlock();
    return error;
}

int address_unmap(uintptr_t address, size_t bytes) {
    lock();
    for (uintptr_t at = address; at < address + bytes;) {
        Range *range = find(&mapped, at);
        if (!range || range->start != at || range->start + range->bytes > address + bytes) { unlock(); return ERROR_INVALID_VALUE; }
        Physical *p = (Physical *)range->charged;
        at += range->bytes;
        unshare_locked(range->start, range->bytes);
        drop(&mapped, range);
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
    Range *range = find(&mapped, address);
    if (range) *handle = range->charged;
    unlock();
    return range ? SUCCESS : ERROR_INVALID_VALUE;
}

/* ---- memory of another process (ipc.c) --------------------------------------------------------------------------------- */

int exported_ticket(const void *address, Ticket *ticket) {
    lock();
    Range *range = find(&taken, (uintptr_t)address);
    bool is_valid = range && range->use == USE_MALLOC && make_ticket_locked(ticket, range->start, range->bytes, range->device);
    unlock();
    return is_valid ? SUCCESS : ERROR_INVALID_VALUE;
}

/* As in CUDA, a handle that is open already is counted and has one address. Nothing is charged: its owner has paid. */
int imported_open(void **address, const Ticket *ticket, int device) {
    int error = SUCCESS;
    lock();
    *address = (void *)opened_again_locked(ticket);
    if (!*address) {
        *address = take_addresses_locked(ticket->bytes, GRANULARITY, device, USE_IMPORTED, 0);
        if (!*address) error = ERROR_OUT_OF_MEMORY;
        else if (!map_ticket_locked(ticket, (uintptr_t)*address)) {
            give_back_locked(find(&taken, (uintptr_t)*address));
            error = ERROR_INVALID_HANDLE;
        }
    }
    unlock();
    return error;
}

int imported_close(void *address) {
    lock();
    Range *range = find(&taken, (uintptr_t)address);
    bool is_valid = range && range->use == USE_IMPORTED && range->start == (uintptr_t)address;
    bool is_last = is_valid && closed_last_locked(range->start);
    size_t bytes = is_last ? range->bytes : 0;
    if (is_last) {
        unshare_locked(range->start, range->bytes);
        give_back_locked(range);
    }
    unlock();
    if (is_last) forget((uintptr_t)address, bytes);
    return is_valid ? SUCCESS : ERROR_INVALID_VALUE;
}

int physical_ticket(uint64_t handle, Ticket *ticket) {
    Physical *p = (Physical *)(uintptr_t)handle;
    if (!p || p->is_imported) return ERROR_INVALID_VALUE;
    lock();
    bool is_mapped = p->mappings > 0; /* the bytes live where it is mapped */
    bool is_made = is_mapped && make_ticket_locked(ticket, p->at, p->bytes, p->device);
    unlock();
    if (!is_mapped) return unimplemented("cuMemExportToShareableHandle (of memory that is not mapped)", ERROR_NOT_SUPPORTED);
    return is_made ? SUCCESS : ERROR_INVALID_VALUE;
}

int physical_import(uint64_t *handle, const Ticket *ticket, int device) {
    Physical *p = calloc(1, sizeof *p);
    *p = (Physical){.bytes = ticket->bytes, .device = device, .is_imported = true, .ticket = *ticket};
    *handle = (uint64_t)(uintptr_t)p;
    return SUCCESS;
}

/* ---- pinned host memory ------------------------------------------------------------------------------------------------ */

int pinned_malloc(void **address, size_t bytes) {
    *address = NULL;
    if (!bytes) return SUCCESS;
    size_t pages = ROUND_UP(bytes, PAGE);
    void *p = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return ERROR_OUT_OF_MEMORY;
    lock();
    add(&pinned, (Range){(uintptr_t)p, pages, current_device, USE_MALLOC, pages});
    unlock();
    *address = p;
    return SUCCESS;
}

int pinned_free(void *address) {
    if (!address) return SUCCESS;
    lock();
    Range *range = find(&pinned, (uintptr_t)address);
    bool is_valid = range && range->start == (uintptr_t)address && range->charged;
    size_t bytes = is_valid ? range->bytes : 0;
    if (is_valid) drop(&pinned, range);
    unlock();
    if (!is_valid) return ERROR_INVALID_VALUE;
    munmap(address, bytes);
    return SUCCESS;
}

int pinned_register(void *address, size_t bytes) {
    if (!address || !bytes) return ERROR_INVALID_VALUE;
    lock();
    bool is_taken = find(&pinned, (uintptr_t)address) != NULL;
    if (!is_taken) add(&pinned, (Range){(uintptr_t)address, bytes, current_device, USE_MALLOC, 0});
    unlock();
    return is_taken ? 712 /* cudaErrorHostMemoryAlreadyRegistered */ : SUCCESS;
}

int pinned_unregister(void *address) {
    lock();
    Range *range = find(&pinned, (uintptr_t)address);
    bool is_valid = range && range->start == (uintptr_t)address && !range->charged;
    if (is_valid) drop(&pinned, range);
    unlock();
    return is_valid ? SUCCESS : 713 /* cudaErrorHostMemoryNotRegistered */;
}

bool is_pinned(const void *address) {
    lock();
    bool answer = find(&pinned, (uintptr_t)address) != NULL;
    unlock();
    return answer;
}

/* ---- copies -------------------------------------------------------------------------------------------------------------- */

/* The Python side knows types: while an operator on integer or bool tensors runs, all its copies are real. */
static __thread bool copies_are_real;
EXPORT void foretell_real_copies(int on) { copies_are_real = on != 0; }

static bool is_real(size_t bytes) { return bytes <= SMALL_COPY || copies_are_real; }

/* The stand-in for what is not known is zero, in whole pages without touching them (a 7B model copied back for a checkpoint
 * must not fill the RAM). Fresh anonymous pages read as zero; other kinds of memory keep their old, valid bytes. */
static void stand_in(char *to, size_t bytes) {
    if (bytes <= 16 * SMALL_COPY) { memset(to, 0, bytes); return; }
    uintptr_t start = ROUND_UP((uintptr_t)to, PAGE), end = ((uintptr_t)to + bytes) & ~(PAGE - 1);
    memset(to, 0, start - (uintptr_t)to);
    madvise((void *)start, end - start, MADV_DONTNEED);
    memset((void *)end, 0, (uintptr_t)to + bytes - end);
}

/* An operator whose result has a size that only the data decides (nonzero, unique) reads a count back. The Python side works the count
 * out beforehand and leaves it here: the next small unknown reads of this thread get it. */
static __thread int64_t answer;
static __thread bool is_answering;
EXPORT void foretell_answer_reads(int64_t value, bool is_on) { answer = value, is_answering = is_on; }
bool answered_read(int64_t *value) { *value = answer; return is_answering; }

static void read_device(char *to, const char *from, size_t bytes, const char *function) {
    size_t num_unknown = 0;
    for (size_t done = 0; done < bytes;) {
        bool is_known_run;
        size_t run = known_prefix((uintptr_t)from + done, bytes - done, &is_known_run);
        if (is_known_run) memcpy(to + done, from + done, run);
        else stand_in(to + done, run), num_unknown += run;
        done += run;
    }
    if (num_unknown && bytes <= sizeof answer && is_answering) {
        memcpy(to, &answer, bytes); /* little-endian: the low bytes come first */
    } else if (num_unknown) log_event(LOG_UNKNOWN_READ, function, (int64_t)num_unknown, (int64_t)from, 0, 0, 0, 0);
}

static void copy_within_device(uintptr_t to, uintptr_t from, size_t bytes) {
    if (is_known(from, bytes) && (is_real(bytes) || bytes <= 64 * SMALL_COPY)) {
        make_writable(to, bytes);
        memmove((void *)to, (void *)from, bytes);
        know(to, bytes, false);
    } else forget(to, bytes);
}

int copy_memory(void *to, const void *from, size_t bytes, int kind, const char *function) {
    if (bytes == 0) return SUCCESS;
    if (!to || !from || kind < HOST_TO_HOST || kind > COPY_DEFAULT) return ERROR_INVALID_VALUE;
    bool to_device = device_of(to) >= 0 && !is_managed(to), from_device = device_of(from) >= 0 && !is_managed(from);
    if ((kind == HOST_TO_DEVICE && !to_device) || (kind == DEVICE_TO_HOST && !from_device)) {
        if (!is_managed(to) && !is_managed(from)) return ERROR_INVALID_VALUE;
    }
    if (to_device && from_device) copy_within_device((uintptr_t)to, (uintptr_t)from, bytes);
    else if (from_device) read_device(to, from, bytes, function);
    else if (!to_device) memmove(to, from, bytes);
    else if (is_real(bytes)) {
        make_writable((uintptr_t)to, bytes);
        memcpy(to, from, bytes);
        know((uintptr_t)to, bytes, false);
    } else forget((uintptr_t)to, bytes);
    return SUCCESS;
}

int set_memory(void *to, int value, size_t value_bytes, size_t bytes) {
    if (bytes == 0) return SUCCESS;
    if (device_of(to) < 0) return ERROR_INVALID_VALUE;
    if (!is_real(bytes)) { forget((uintptr_t)to, bytes); return SUCCESS; }
    make_writable((uintptr_t)to, bytes);
    if (value_bytes == 1) memset(to, value, bytes);
    else for (size_t i = 0; i < bytes; i += value_bytes) memcpy((char *)to + i, &value, value_bytes);
    know((uintptr_t)to, bytes, false);
    return SUCCESS;
}
