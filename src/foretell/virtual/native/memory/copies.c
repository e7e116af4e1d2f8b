/* Copies and memsets, real or not, and what is read back of memory that is not known. */
#include "memory/ranges.h"
#include <string.h>
#include <sys/mman.h>

/* The Python side knows types: while an operator on integer or bool tensors runs, all its copies are real. */
static __thread bool copies_are_real;
EXPORT void foretell_real_copies(int on) { copies_are_real = on != 0; }

/* Gloo copies in threads of its own. */
static bool all_copies_are_real;
EXPORT void foretell_all_copies_are_real(int on) { __atomic_store_n(&all_copies_are_real, on != 0, __ATOMIC_RELAXED); }

static bool is_real(size_t bytes) {
    return bytes <= SMALL_COPY || copies_are_real || __atomic_load_n(&all_copies_are_real, __ATOMIC_RELAXED);
}

/* The stand-in for what is not known is zero, in whole pages without touching them (a 7B model copied back for a
 * checkpoint must not fill the RAM). Fresh anonymous pages read as zero; other kinds of memory keep their old, valid
 * bytes. */
static void stand_in(char *to, size_t bytes) {
    if (bytes <= 16 * SMALL_COPY) { memset(to, 0, bytes); return; }
    uintptr_t start = ROUND_UP((uintptr_t)to, PAGE), end = ((uintptr_t)to + bytes) & ~(PAGE - 1);
    memset(to, 0, start - (uintptr_t)to);
    madvise((void *)start, end - start, MADV_DONTNEED);
    memset((void *)end, 0, (uintptr_t)to + bytes - end);
}

/* An operator whose result has a size that only the data decides (nonzero, unique) reads a count back. The Python
 * side works the count out beforehand and leaves it here: the next small unknown reads of this thread get it. */
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
    } else if (num_unknown) {
        log_unknown_read(function, (UnknownReadRecord){.bytes = (int64_t)num_unknown, .address = (intptr_t)from});
    }
}

static void copy_within_device(uintptr_t to, uintptr_t from, size_t bytes) {
    if (!is_real(bytes) && bytes > 64 * SMALL_COPY) { forget(to, bytes); return; }
    for (size_t done = 0, run; done < bytes; done += run) {
        bool is_known_run;
        run = known_prefix(from + done, bytes - done, &is_known_run);
        if (!is_known_run) { forget(to + done, run); continue; }
        make_writable(to + done, run);
        memmove((void *)(to + done), (void *)(from + done), run);
        /* in a group a rank copies what it sends to itself, and the end of the group is a launch */
        if (group_depth) know_for_a_while(to + done, run);
        else know(to + done, run, false);
    }
}

int copy_memory(void *to, const void *from, size_t bytes, int kind, const char *function) {
    if (bytes == 0) return SUCCESS;
    if (!to || !from || kind < HOST_TO_HOST || kind > COPY_DEFAULT) return ERROR_INVALID_VALUE;
    bool to_device = device_of(to) >= 0 && !is_managed(to), from_device = device_of(from) >= 0 && !is_managed(from);
    bool is_within_host = !to_device && !from_device && !is_pinned(to) && !is_pinned(from);
    if ((kind == HOST_TO_DEVICE && !to_device) || (kind == DEVICE_TO_HOST && !from_device) ||
        (kind == DEVICE_TO_DEVICE && is_within_host)) {
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
