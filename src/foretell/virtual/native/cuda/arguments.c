/* What the kernels of an extension write. torch's own kernels are watched from Python, which repeats operators or
 * forgets their results; of an extension's kernels only the launch is seen. The name of a C++ kernel holds the types
 * of its parameters: a pointer to something that is not const may be written through, so what is known there is
 * forgotten. */
#include "cuda/kernels.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN = '-', POINTER = 'p', STRUCTURE = 's' };
#define STRUCTURE_BYTES 512 /* how far pointers are looked for in a structure, whose size is not in the name */

static char *demangled(const char *name) {
    static char *(*demangle)(const char *, char *, size_t *, int *);
    if (!demangle) { /* whoever brings C++ kernels has loaded it */
        void *library = dlopen("libstdc++.so.6", RTLD_LAZY);
        if (!library) return NULL;
        *(void **)&demangle = dlsym(library, "__cxa_demangle");
    }
    return demangle && !strncmp(name, "_Z", 2) ? demangle(name, NULL, NULL, NULL) : NULL;
}

/* "void scale<float>(float const*, float*, int)": the parenthesis that belongs to the last one. */
static char *parameter_list(char *signature) {
    char *end = strrchr(signature, ')');
    if (!end) return NULL;
    int depth = 0;
    for (char *at = end; at >= signature; at--) {
        depth += (*at == ')') - (*at == '(');
        if (!depth) { *end = 0; return at + 1; }
    }
    return NULL;
}

static bool starts_with_any(const char *text, const char *const *words) {
    for (; *words; words++)
        if (!strncmp(text, *words, strlen(*words))) return true;
    return false;
}

static char kind_of(const char *type, size_t length) {
    static const char *const SCALARS[] = {
        "bool", "char", "signed", "unsigned", "short", "int", "long", "float", "double", NULL};
    while (length && *type == ' ') type++, length--;
    char last = length ? type[length - 1] : 0;
    bool is_constant = length > 6 && !strncmp(type + length - 6, "const", 5);
    if (last == '*' || last == '&') return is_constant ? PLAIN : POINTER;
    return starts_with_any(type, SCALARS) || !length ? PLAIN : STRUCTURE;
}

char *parameter_kinds(const char *name) {
    char *signature = demangled(name), *list = signature ? parameter_list(signature) : NULL;
    char *kinds = allocate(list ? strlen(list) + 2 : 1);
    size_t num_kinds = 0;
    int depth = 0;
    for (char *start = list, *at = list; list && *list; at++) {
        depth += (*at == '<' || *at == '(' || *at == '[') - (*at == '>' || *at == ')' || *at == ']');
        if (*at && (*at != ',' || depth)) continue;
        kinds[num_kinds++] = kind_of(start, (size_t)(at - start));
        start = at + 1;
        if (!*at) break;
    }
    free(signature);
    return kinds;
}

static void forget_behind(uintptr_t pointer) {
    uintptr_t base;
    size_t bytes;
    bool is_run_known;
    if (device_of((void *)pointer) < 0 || !range_of((void *)pointer, &base, &bytes)) return;
    size_t run = known_prefix(pointer, base + bytes - pointer, &is_run_known);
    if (is_run_known) forget(pointer, run);
}

/* Arguments are copied to the launcher's stack, where reading on beyond one of them is safe. */
static size_t readable_bytes(const char *argument) {
    uintptr_t here = (uintptr_t)__builtin_frame_address(0), at = (uintptr_t)argument;
    return at > here && at - here < (64 << 10) ? STRUCTURE_BYTES : sizeof(uintptr_t);
}

void forget_written(const char *kinds, void **arguments) {
    for (size_t i = 0; arguments && kinds[i]; i++) {
        const char *argument = arguments[i];
        size_t bytes = kinds[i] == POINTER ? sizeof(uintptr_t) : kinds[i] == STRUCTURE ? readable_bytes(argument) : 0;
        for (size_t offset = 0; offset < bytes; offset += sizeof(uintptr_t)) {
            uintptr_t pointer;
            memcpy(&pointer, argument + offset, sizeof pointer);
            forget_behind(pointer);
        }
    }
}
