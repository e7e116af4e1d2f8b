/* Which device bytes are what a real GPU would hold there. Kernels do nothing, so everything is unknown until a real
 * copy, a memset or the host (inside, which repeats small operators) has written it.
 *
 * A kernel may overwrite a known range and C cannot see it. So knowledge that only C has (a copy it made) lasts
 * until the next launch; knowledge the host confirms lasts until the host takes it back. Of memory that processes
 * share (ipc.c) only the latter counts. */
#include "memory/known.h"
#include <stdlib.h>
#include <string.h>

typedef struct { uintptr_t start, end; uint64_t until; } Known; /* until: the launch number at which it lapses */
#define CONFIRMED UINT64_MAX
#define A_WHILE 32 /* launches */

static Known *known; /* disjoint, ascending */
static size_t num_known, room;

static size_t first_ending_after(uintptr_t address) {
    size_t low = 0, high = num_known;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (known[middle].end <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void insert(size_t at, Known k) {
    known = with_room(known, sizeof *known, num_known, &room);
    memmove(known + at + 1, known + at, sizeof *known * (num_known++ - at));
    known[at] = k;
}

static void erase(size_t at, size_t count) {
    if (!count) return;
    memmove(known + at, known + at + count, sizeof *known * (num_known - at - count));
    num_known -= count;
}

static void forget_locked(uintptr_t start, uintptr_t end) {
    size_t i = first_ending_after(start);
    if (i < num_known && known[i].start < start) { /* keep what lies before */
        Known rest = known[i];
        known[i++].end = start;
        if (rest.end > end) { insert(i, (Known){end, rest.end, rest.until}); return; }
    }
    size_t last = i;
    while (last < num_known && known[last].end <= end) last++;
    if (last < num_known && known[last].start < end) known[last].start = end;
    erase(i, last - i);
}

static void know_until(uintptr_t address, size_t bytes, uint64_t until) {
    if (!bytes) return;
    lock();
    set_known_bits_locked(address, bytes, until == CONFIRMED);
    forget_locked(address, address + bytes);
    size_t i = first_ending_after(address);
    bool extends = i > 0 && known[i - 1].end == address && known[i - 1].until == until;
    if (extends) known[i - 1].end = address + bytes;
    else insert(i, (Known){address, address + bytes, until});
    unlock();
}

void know(uintptr_t address, size_t bytes, bool is_confirmed) {
    know_until(address, bytes, is_confirmed ? CONFIRMED : __atomic_load_n(&launches, __ATOMIC_RELAXED));
}

/* What a library has written is not read before it has been copied or added up in C++, by a few kernels. */
void know_for_a_while(uintptr_t address, size_t bytes) {
    know_until(address, bytes, __atomic_load_n(&launches, __ATOMIC_RELAXED) + A_WHILE);
}

void forget(uintptr_t address, size_t bytes) {
    lock();
    set_known_bits_locked(address, bytes, false);
    if (num_known) forget_locked(address, address + bytes);
    unlock();
}

/* The tensor there died, and its block may become another one's. Others who share the memory may hold the tensor
 * still. */
EXPORT void foretell_abandon(uintptr_t address, size_t bytes) {
    lock();
    if (num_known) forget_locked(address, address + bytes);
    unlock();
}

/* A tensor is sent to another process: what is confirmed of it here is known there. */
void publish_locked(uintptr_t address, size_t bytes) {
    set_known_bits_locked(address, bytes, false);
    for (size_t i = first_ending_after(address); i < num_known && known[i].start < address + bytes; i++) {
        uintptr_t from = known[i].start > address ? known[i].start : address;
        uintptr_t to = known[i].end < address + bytes ? known[i].end : address + bytes;
        if (known[i].until == CONFIRMED) set_known_bits_locked(from, to - from, true);
    }
}
EXPORT void foretell_publish(uintptr_t address, size_t bytes) {
    lock();
    publish_locked(address, bytes);
    unlock();
}

static size_t known_prefix_here(uintptr_t address, size_t bytes, bool *is_known_run) {
    uint64_t now = __atomic_load_n(&launches, __ATOMIC_RELAXED);
    uintptr_t at = address, end = address + bytes;
    size_t i = first_ending_after(address);
    *is_known_run = i < num_known && known[i].start <= address && known[i].until >= now;
    while (at < end) {
        bool here = i < num_known && known[i].start <= at && known[i].until >= now;
        if (here != *is_known_run) break;
        if (i < num_known && known[i].start <= at) at = known[i++].end;
        else at = i < num_known ? known[i].start : end;
    }
    return (at < end ? at : end) - address;
}

size_t known_prefix(uintptr_t address, size_t bytes, bool *is_known_run) {
    uintptr_t border;
    lock();
    enum Sharing sharing = sharing_locked(address, &border);
    size_t run = bytes < border - address ? bytes : border - address;
    if (sharing != IMPORTED) run = known_prefix_here(address, run, is_known_run);
    if (sharing == IMPORTED || (sharing == EXPORTED && *is_known_run)) run = bit_run_locked(address, run, is_known_run);
    unlock();
    return run;
}

bool is_known(uintptr_t address, size_t bytes) {
    bool run = true;
    for (size_t done = 0; run && done < bytes;) done += known_prefix(address + done, bytes - done, &run);
    return run;
}

EXPORT void foretell_know(uintptr_t address, size_t bytes) { know(address, bytes, true); }
EXPORT void foretell_forget(uintptr_t address, size_t bytes) { forget(address, bytes); }
EXPORT int foretell_is_known(uintptr_t address, size_t bytes) { return is_known(address, bytes); }
/* Whether the host has confirmed all of it, in this process. */
EXPORT int foretell_is_confirmed(uintptr_t address, size_t bytes) {
    uintptr_t at = address, end = address + bytes;
    lock();
    for (size_t i = first_ending_after(at); at < end && i < num_known; at = known[i++].end)
        if (known[i].start > at || known[i].until != CONFIRMED) break;
    unlock();
    return at >= end;
}
EXPORT int foretell_is_any_known(uintptr_t address, size_t bytes) {
    bool run;
    return known_prefix(address, bytes, &run) < bytes || run;
}

/* Byte by byte, for small tensors of which only some elements are known. */
EXPORT void foretell_read_known(uintptr_t address, size_t bytes, uint8_t *is_known_byte) {
    for (size_t done = 0; done < bytes;) {
        bool run_is_known;
        size_t run = known_prefix(address + done, bytes - done, &run_is_known);
        memset(is_known_byte + done, run_is_known, run);
        done += run;
    }
}

enum { NOT_KNOWN, IS_KNOWN, AS_BEFORE };
EXPORT void foretell_write_known(uintptr_t address, size_t bytes, const uint8_t *becomes) {
    for (size_t start = 0, end; start < bytes; start = end) {
        for (end = start + 1; end < bytes && becomes[end] == becomes[start];) end++;
        if (becomes[start] == IS_KNOWN) know(address + start, end - start, true);
        else if (becomes[start] == NOT_KNOWN) forget(address + start, end - start);
    }
}
