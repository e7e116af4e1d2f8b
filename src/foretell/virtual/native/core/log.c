/* The native log: 64-byte records in FORETELL_LOG-<pid>.bin, names (one a line, by number) in FORETELL_LOG-<pid>.names.
 * Costs one branch when nobody asked for it. log_kinds.h has the records. */
#include "core/vgpu.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { uint64_t time_us; uint32_t kind, name; int64_t words[6]; } Record;
_Static_assert(sizeof(Record) == 64, "the reader relies on it");

#define BUFFERED 1024
#define NAME_SLOTS (1 << 16)
static Record buffer[BUFFERED];
static int num_buffered, records_file = -1, names_file = -1;
static uint32_t num_names;
/* by pointer: names are string constants or kept */
static struct { const char *name; uint32_t number; } names[NAME_SLOTS];
static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static int state = -1; /* -1 not asked yet, 0 off, 1 on */

static void after_fork_in_child(void) {
    /* The parent's files stay the parent's; a child that uses the GPU gets its own. */
    num_buffered = 0;
    if (records_file >= 0) close(records_file);
    if (names_file >= 0) close(names_file);
    records_file = names_file = -1;
    num_names = 0;
    memset(names, 0, sizeof names);
    pthread_mutex_unlock(&log_mutex);
}
static void before_fork(void) { pthread_mutex_lock(&log_mutex); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&log_mutex); }
__attribute__((constructor)) static void guard_fork(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

bool is_logging(void) {
    if (state < 0) {
        const char *prefix = getenv("FORETELL_LOG");
        state = prefix && *prefix;
    }
    return state == 1;
}

static int open_file(const char *suffix) {
    char path[4096];
    snprintf(path, sizeof path, "%s-%d.%s", getenv("FORETELL_LOG"), (int)getpid(), suffix);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    /* a full or read-only disk must not stop the user's job; the reader sees that it is missing */
    if (file < 0) state = 0;
    return file;
}

static void write_all(int file, const void *bytes, size_t count) {
    const char *p = bytes;
    while (count > 0) {
        ssize_t written = write(file, p, count);
        if (written <= 0) { state = 0; return; }
        p += written, count -= (size_t)written;
    }
}

static void flush_locked(void) {
    if (num_buffered == 0) return;
    if (records_file < 0) records_file = open_file("bin");
    if (records_file >= 0) write_all(records_file, buffer, sizeof(Record) * (size_t)num_buffered);
    num_buffered = 0;
}

__attribute__((destructor)) static void flush_at_exit(void) {
    pthread_mutex_lock(&log_mutex);
    flush_locked();
    pthread_mutex_unlock(&log_mutex);
}

static uint32_t number_of(const char *name) {
    size_t slot = ((uintptr_t)name >> 3) * 2654435761u % NAME_SLOTS;
    for (size_t probes = 0; probes < NAME_SLOTS; probes++, slot = (slot + 1) % NAME_SLOTS) {
        if (names[slot].name == name) return names[slot].number;
        if (names[slot].name) continue;
        if (names_file < 0) names_file = open_file("names");
        if (names_file >= 0) {
            write_all(names_file, name, strlen(name));
            write_all(names_file, "\n", 1);
        }
        names[slot].name = name;
        return names[slot].number = num_names++;
    }
    return 0;
}

void log_event(enum LogKind kind, const char *name, const int64_t words[6]) {
    if (!is_logging()) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    pthread_mutex_lock(&log_mutex);
    Record *record = &buffer[num_buffered++];
    *record = (Record){(uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000, kind, number_of(name), {0}};
    memcpy(record->words, words, sizeof record->words);
    /* What explains a death is written at once. */
    bool is_urgent = kind == LOG_UNIMPLEMENTED || kind == LOG_OUT_OF_MEMORY || kind == LOG_STATIC_RUNTIME ||
                     kind == LOG_NO_ADDRESS_SPACE;
    if (num_buffered == BUFFERED || is_urgent) flush_locked();
    pthread_mutex_unlock(&log_mutex);
}

void count_launch(void) { __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED); }

void library_call(const char *function) {
    count_launch();
    log_library_call(function, (LibraryCallRecord){.device = current_device});
}

void workspace_given(const void *address, int64_t bytes) {
    if (!address || bytes <= 0) return;
    log_workspace("workspace", (WorkspaceRecord){
        .address = (intptr_t)address, .bytes = bytes, .device = current_device});
}
