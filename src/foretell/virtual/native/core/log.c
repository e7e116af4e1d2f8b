/* The native log: 64-byte records in FORETELL_LOG-<pid>.bin, names (one a line, by number) in FORETELL_LOG-<pid>.names.
 * Costs one branch when nobody asked for it. log_kinds.h has the records.
 *
 * A record is there once it is made, however the process ends: records are written into a shared mapping of the file.
 * No descriptor is kept, and the environment is read once, because scripts close the one and clear the other. */
#include "core/vgpu.h"
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct { uint64_t time_us; uint32_t kind, name; int64_t words[6]; } Record;
_Static_assert(sizeof(Record) == 64, "the reader relies on it");

#define CHUNK_RECORDS 4096 /* mapped at once; the reader skips records of kind 0, which were not made */
#define CHUNK_BYTES (CHUNK_RECORDS * sizeof(Record))
#define NAME_SLOTS (1 << 16)
static Record *chunk;
static size_t num_in_chunk;
static uint32_t num_names;
static unsigned number_of_log = 1;
/* by pointer: names are string constants or kept */
static struct { const char *name; uint32_t number; } names[NAME_SLOTS];
static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static char prefix[PATH_MAX]; /* empty: nothing is logged */
static char folder[PATH_MAX]; /* of the log, also once it is stopped */

/* For forks of a process that waits with torch imported, whose runs each have a folder of their own. */
EXPORT void foretell_log_to(const char *path);
void foretell_log_to(const char *path) {
    snprintf(prefix, sizeof prefix, "%s", path);
    char *last = strrchr(strcpy(folder, prefix), '/');
    *(last ? last : folder) = 0;
}

static void after_fork_in_child(void) {
    /* The parent's files stay the parent's; a child that uses the GPU gets its own. */
    if (chunk) munmap(chunk, CHUNK_BYTES);
    chunk = NULL;
    num_names = 0;
    number_of_log++;
    memset(names, 0, sizeof names);
    pthread_mutex_unlock(&log_mutex);
}
static void before_fork(void) { pthread_mutex_lock(&log_mutex); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&log_mutex); }
__attribute__((constructor)) static void start(void) {
    const char *path = getenv("FORETELL_LOG");
    foretell_log_to(path ? path : "");
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

bool is_logging(void) { return *prefix != 0; }

unsigned log_number(void) { return number_of_log; }

const char *log_folder(void) { return *folder ? folder : NULL; }

/* A full or read-only disk must not stop the user's job; the reader sees that the rest is missing. */
static bool stop_logging(void) {
    *prefix = 0;
    return false;
}

static int open_file(const char *suffix, int flags) {
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s-%d.%s", prefix, (int)getpid(), suffix);
    return open(path, flags | O_RDWR | O_CREAT | O_CLOEXEC, 0644);
}

/* Space on the disk is taken beforehand: a mapped page without it would end the process by SIGBUS. */
static bool map_next_chunk(void) {
    if (chunk) munmap(chunk, CHUNK_BYTES);
    chunk = NULL;
    int file = open_file("bin", 0);
    struct stat status;
    struct rlimit limit;
    if (file >= 0 && !fstat(file, &status) && !getrlimit(RLIMIT_FSIZE, &limit)) {
        off_t end = (off_t)((size_t)status.st_size / CHUNK_BYTES * CHUNK_BYTES);
        if ((rlim_t)end + CHUNK_BYTES <= limit.rlim_cur && !posix_fallocate(file, end, CHUNK_BYTES)) {
            void *mapped = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, end);
            chunk = mapped == MAP_FAILED ? NULL : mapped;
        }
    }
    if (file >= 0) close(file);
    num_in_chunk = 0;
    return chunk || stop_logging();
}

static uint32_t lines_in(int file) {
    char bytes[4096];
    uint32_t lines = 0;
    for (ssize_t got; (got = read(file, bytes, sizeof bytes)) > 0;)
        for (ssize_t i = 0; i < got; i++) lines += bytes[i] == '\n';
    return lines;
}

static bool write_name(const char *name) {
    char line[4096];
    int length = snprintf(line, sizeof line, "%s\n", name);
    if (length >= (int)sizeof line) line[(length = (int)sizeof line) - 1] = '\n';
    int file = open_file("names", O_APPEND);
    if (file >= 0 && !num_names) num_names = lines_in(file); /* of a program that has replaced itself by this one */
    bool is_written = file >= 0 && write(file, line, (size_t)length) == length;
    if (file >= 0) close(file);
    return is_written || stop_logging();
}

static uint32_t number_of(const char *name) {
    size_t slot = ((uintptr_t)name >> 3) * 2654435761u % NAME_SLOTS;
    for (size_t probes = 0; probes < NAME_SLOTS; probes++, slot = (slot + 1) % NAME_SLOTS) {
        if (names[slot].name == name) return names[slot].number;
        if (names[slot].name) continue;
        write_name(name);
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
    uint32_t number = number_of(name);
    if (is_logging() && ((chunk && num_in_chunk < CHUNK_RECORDS) || map_next_chunk())) {
        Record *record = &chunk[num_in_chunk++];
        record->time_us = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000;
        record->name = number;
        memcpy(record->words, words, sizeof record->words);
        __atomic_store_n(&record->kind, (uint32_t)kind, __ATOMIC_RELEASE); /* last: now it is whole */
    }
    pthread_mutex_unlock(&log_mutex);
}

void count_launch(void) {
    has_launched = true;
    __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
}

void library_call(const char *function) {
    count_launch();
    log_library_call(function, (LibraryCallRecord){.device = current_device});
}

void workspace_given(const void *address, int64_t bytes) {
    if (!address || bytes <= 0) return;
    log_workspace("workspace", (WorkspaceRecord){
        .address = (intptr_t)address, .bytes = bytes, .device = current_device});
}
