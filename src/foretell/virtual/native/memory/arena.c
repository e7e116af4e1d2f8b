/* Where device addresses come from: one reserved part of the address space, without pages. The bytes behind an
 * address exist only where a real copy has put something. */
#include "memory/ranges.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

Arena arena = {.file = -1};
static bool is_lazy;            /* pages become writable one copy at a time: hosts that forbid overcommit */
static size_t lowest_gap_index; /* taken[0 .. this) has no gap */

/* A file without a name: other processes can map parts of it (ipc.c). It takes no more memory than private pages
 * would. */
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
    int flags = (is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_NORESERVE;
    char *p = mmap(NULL, all, protection, flags, file, 0);
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

/* Address space costs nothing; less of it is tried where the host limits it (ulimit -v). Expandable segments reserve
 * more than the card for each stream. */
static bool reserve_arena(void) {
    size_t many = 16 * (size_t)card()->total, usual = (size_t)4 << 40;
    size_t bytes = ROUND_UP(card()->arena ? (size_t)card()->arena : many > usual ? many : usual, GRANULARITY);
    for (; bytes >= (size_t)card()->total; bytes = ROUND_UP(bytes / 2, GRANULARITY))
        if (map_arena(bytes, true, false) || map_arena(bytes, false, false) || map_arena(bytes, false, true))
            return true;
    return false;
}

/* A forked child goes on with a copy of its own: what it writes must not reach its parent. */
static void keep_arena_private(void) {
    if (arena.file < 0) return;
    int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    mmap((void *)arena.map, arena.map_bytes, PROT_READ | PROT_WRITE, flags, arena.file, 0);
    close(arena.file);
    arena.file = -1;
}
__attribute__((constructor)) static void guard_fork(void) { pthread_atfork(NULL, NULL, keep_arena_private); }

/* Where the taken range before this one ends. */
static uintptr_t end_before(size_t index) {
    return index ? taken.items[index - 1].start + taken.items[index - 1].bytes : arena.start;
}

/* Lowest address first: PyTorch's pools order equal blocks by address, and a real driver's addresses ascend. */
static void *no_addresses(size_t bytes) {
    log_no_address_space("-", (NoAddressSpaceRecord){.requested_bytes = (int64_t)bytes});
    return NULL;
}

void *take_addresses_locked(size_t bytes, size_t alignment, int device, enum Use use, size_t charged) {
    if (!arena.start && !reserve_arena()) return no_addresses((size_t)card()->total);
    uintptr_t at = end_before(lowest_gap_index);
    size_t i = lowest_gap_index;
    for (;; i++) {
        at = ROUND_UP(at, alignment);
        if (i == taken.count || at + bytes <= taken.items[i].start) break;
        at = taken.items[i].start + taken.items[i].bytes;
    }
    if (bytes > arena.bytes || at + bytes > arena.start + arena.bytes) return no_addresses(bytes);
    add_range(&taken, (Range){at, bytes, device, use, charged});
    while (lowest_gap_index < taken.count && taken.items[lowest_gap_index].start == end_before(lowest_gap_index))
        lowest_gap_index++;
    return (void *)at;
}

void give_back_locked(Range *range) {
    size_t index = (size_t)(range - taken.items);
    if (index < lowest_gap_index) lowest_gap_index = index;
    drop_range(&taken, range);
}

void make_writable(uintptr_t address, size_t bytes) {
    if (!is_lazy || !bytes) return;
    uintptr_t start = address & ~(PAGE - 1);
    mprotect((void *)start, ROUND_UP(address + bytes - start, PAGE), PROT_READ | PROT_WRITE);
}

/* Gives pages back to the host; the addresses read as zero again. */
void drop_pages(uintptr_t address, size_t bytes) {
    uintptr_t start = ROUND_UP(address, PAGE), end = (address + bytes) & ~(PAGE - 1);
    if (end > start) madvise((void *)start, end - start, arena.file >= 0 ? MADV_REMOVE : MADV_DONTNEED);
}
