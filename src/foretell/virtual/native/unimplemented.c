/* No silent success: every function of unimplemented.inc fails, and says its name. */
#include "vgpu.h"
#include <string.h>

#define F(name, code) EXPORT int name(void); int name(void) { return unimplemented(#name, code); }
#include "unimplemented.inc"
#undef F

static const struct { const char *name; void *function; } TABLE[] = {
#define F(name, code) { #name, (void *)name },
#include "unimplemented.inc"
#undef F
};

void *unimplemented_function(const char *name);
void *unimplemented_function(const char *name) {
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        if (!strcmp(TABLE[i].name, name)) return TABLE[i].function;
    return NULL;
}
