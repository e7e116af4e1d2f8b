/* NVIDIA's own libraries, which are loaded and idle: some of their functions need no card and are passed on to. */
#include "core/vgpu.h"
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

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
