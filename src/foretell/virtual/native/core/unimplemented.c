/* No silent success: every function of unimplemented.inc fails, and says its name. */
#include "core/vgpu.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define F(name, code) EXPORT int name(void); int name(void) { return unimplemented(#name, code); }
#include "core/unimplemented.inc"
#undef F

static const struct { const char *name; void *function; } TABLE[] = {
#define F(name, code) { #name, (void *)name },
#include "core/unimplemented.inc"
#undef F
};

void *unimplemented_function(const char *name);
void *unimplemented_function(const char *name) {
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        if (!strcmp(TABLE[i].name, name)) return TABLE[i].function;
    return NULL;
}

/* ---- who is told ------------------------------------------------------------------------------------------------ */

#define MAX_UNIMPLEMENTED 64
static const char *unimplemented_names[MAX_UNIMPLEMENTED];
static int num_unimplemented;
static void (*tell_unimplemented)(const char *function);

/* The Python side knows which operator and which line of the script a call comes from. */
EXPORT void foretell_on_unimplemented(void (*tell)(const char *function)) { tell_unimplemented = tell; }

int unimplemented(const char *function, int code) {
    bool is_new = true;
    lock();
    for (int i = 0; i < num_unimplemented; i++) is_new &= strcmp(unimplemented_names[i], function) != 0;
    if (is_new && num_unimplemented < MAX_UNIMPLEMENTED) unimplemented_names[num_unimplemented++] = function;
    unlock();
    if (is_new) fprintf(stderr, "foretell's virtual GPU does not implement %s yet\n", function);
    log_unimplemented(function);
    if (is_new && tell_unimplemented) tell_unimplemented(function);
    return code;
}

EXPORT int foretell_unimplemented_count(void) { return num_unimplemented; }
EXPORT const char *foretell_unimplemented_name(int i) {
    return i >= 0 && i < num_unimplemented ? unimplemented_names[i] : NULL;
}

/* ---- libraries with a CUDA runtime of their own ----------------------------------------------------------------- */

/* NVIDIA's own libraries have one each, and are answered before they come to use it. */
static bool is_nvidias(const char *path) {
    /* Whole names: somebody's own may well be called libcustom or libcuda_operators. */
    static const char *PREFIXES[] = {
        "libcublas", "libcudart.", "libcudnn", "libcufft", "libcufile", "libcupti.", "libcurand.", "libcusolver",
        "libcusparse", "libcudss", "libnccl", "libnvJitLink.", "libnvToolsExt", "libnvblas.", "libnvperf", "libnvrtc",
        "libnvshmem", "libnvtx", "libcheckpoint.", "libpcsamplingutil."};
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
    lock();
    bool is_new = num_named < MAX_UNIMPLEMENTED;
    for (int i = 0; i < num_named; i++) is_new &= strcmp(named[i], found.dli_fname) != 0;
    if (is_new) name = named[num_named++] = copied(found.dli_fname); /* it may be unloaded */
    unlock();
    if (!is_new) return;
    fprintf(stderr, "foretell's virtual GPU does not support %s: it contains its own copy of the CUDA runtime\n", name);
    log_static_runtime(name);
}
