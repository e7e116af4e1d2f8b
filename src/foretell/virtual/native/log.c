/* The native log: 64-byte records in FORETELL_LOG-<pid>.bin, names (one a line, by number) in FORETELL_LOG-<pid>.names.
 * Costs one branch when nobody asked for it. docs/architecture.md lists the records. */
#include "vgpu.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { uint64_t time_us; uint32_t kind, name; int64_t a[6]; } Record;
_Static_assert(sizeof(Record) == 64, "the reader relies on it");

#define BUFFERED 1024
#define NAME_SLOTS (1 << 16)
static Record buffer[BUFFERED];
static int num_buffered, records_file = -1, names_file = -1;
static uint32_t num_names;
static struct { const char *name; uint32_t number; } names[NAME_SLOTS]; /* by pointer: names are string constants or kept */
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
__attribute__((constructor)) static void guard_fork(void) { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

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
    if (file < 0) state = 0; /* a full or read-only disk must not stop the user's job; the reader sees that it is missing */
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

void log_event(enum LogKind kind, const char *name, int64_t a0, int64_t a1, int64_t a2, int64_t a3, int64_t a4, int64_t a5) {
    if (!is_logging()) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    pthread_mutex_lock(&log_mutex);
    buffer[num_buffered++] = (Record){(uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000, kind, number_of(name), {a0, a1, a2, a3, a4, a5}};
    /* What explains a death is written at once. */
    if (num_buffered == BUFFERED || kind == LOG_UNIMPLEMENTED || kind == LOG_OUT_OF_MEMORY || kind == LOG_STATIC_RUNTIME) flush_locked();
    pthread_mutex_unlock(&log_mutex);
}

void library_call(const char *function, int64_t workspace, int64_t a1, int64_t a2, int64_t a3, int64_t a4) {
    __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    log_event(LOG_LIBRARY, function, workspace, a1, a2, a3, a4, current_device);
}

void workspace_given(const void *address, int64_t bytes) {
    if (address && bytes > 0) log_event(LOG_WORKSPACE, "workspace", (int64_t)(intptr_t)address, bytes, current_device, 0, 0, 0);
}

/* ---- functions that are not there ---------------------------------------------------------------------------- */

#define MAX_UNIMPLEMENTED 64
static const char *unimplemented_names[MAX_UNIMPLEMENTED];
static int num_unimplemented;
static void (*tell_unimplemented)(const char *function);

/* The Python side knows which operator and which line of the script a call comes from. */
EXPORT void foretell_on_unimplemented(void (*tell)(const char *function)) { tell_unimplemented = tell; }

int unimplemented(const char *function, int code) {
    bool is_new = true;
    pthread_mutex_lock(&log_mutex);
    for (int i = 0; i < num_unimplemented; i++) is_new &= strcmp(unimplemented_names[i], function) != 0;
    if (is_new && num_unimplemented < MAX_UNIMPLEMENTED) unimplemented_names[num_unimplemented++] = function;
    pthread_mutex_unlock(&log_mutex);
    if (is_new) fprintf(stderr, "foretell's virtual GPU does not implement %s yet\n", function);
    log_event(LOG_UNIMPLEMENTED, function, 0, 0, 0, 0, 0, 0);
    if (is_new && tell_unimplemented) tell_unimplemented(function);
    return code;
}

EXPORT int foretell_unimplemented_count(void) { return num_unimplemented; }
EXPORT const char *foretell_unimplemented_name(int i) { return i >= 0 && i < num_unimplemented ? unimplemented_names[i] : NULL; }

/* NVIDIA's own libraries have one each, and are answered before they come to use it. */
static bool is_nvidias(const char *path) {
    /* Whole names: somebody's own may well be called libcustom or libcuda_operators. */
    static const char *PREFIXES[] = {"libcublas", "libcudart.", "libcudnn", "libcufft", "libcufile", "libcupti.", "libcurand.", "libcusolver", "libcusparse",
                                     "libcudss", "libnccl", "libnvJitLink.", "libnvToolsExt", "libnvblas.", "libnvperf", "libnvrtc", "libnvshmem", "libnvtx",
                                     "libcheckpoint.", "libpcsamplingutil."};
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++)
        if (!strncmp(file, PREFIXES[i], strlen(PREFIXES[i]))) return true;
    return false;
}

void static_runtime(const void *caller) {
    static const char *named[MAX_UNIMPLEMENTED];
    static int num_named;
    Dl_info found;
    if (!dladdr(caller, &found) || !found.dli_fname || is_nvidias(found.dli_fname)) return;
    const char *name = NULL;
    pthread_mutex_lock(&log_mutex);
    bool is_new = num_named < MAX_UNIMPLEMENTED;
    for (int i = 0; i < num_named; i++) is_new &= strcmp(named[i], found.dli_fname) != 0;
    if (is_new) name = named[num_named++] = strdup(found.dli_fname); /* it may be unloaded */
    pthread_mutex_unlock(&log_mutex);
    if (!is_new) return;
    fprintf(stderr, "foretell's virtual GPU cannot serve %s: it brings its own copy of the CUDA runtime\n", name);
    log_event(LOG_STATIC_RUNTIME, name, 0, 0, 0, 0, 0, 0);
}

/* ---- the real libraries, idle beside us ----------------------------------------------------------------------- */

typedef struct { const char *prefix; char path[4096]; } Wanted;

static int match_library(struct dl_phdr_info *info, size_t size UNUSED, void *data) {
    Wanted *wanted = data;
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *file = slash ? slash + 1 : info->dlpi_name;
    if (strncmp(file, wanted->prefix, strlen(wanted->prefix))) return 0;
    snprintf(wanted->path, sizeof wanted->path, "%s", info->dlpi_name);
    return 1;
}

void *real_function(const char *library_prefix, const char *function) {
    Wanted wanted = {library_prefix, ""};
    if (!dl_iterate_phdr(match_library, &wanted)) return NULL;
    void *library = dlopen(wanted.path, RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, function) : NULL;
}
