/* Memory of the virtual GPU's own. CUDA has no error code for a host without memory that torch would not take for a
 * full card, so the process ends, and says why. */
#include "core/vgpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *existing(void *memory, size_t bytes) {
    if (memory) return memory;
    fprintf(stderr, "foretell: the host has no %zu bytes left for the virtual GPU's own records\n", bytes);
    abort();
}

void *allocate(size_t bytes) { return existing(calloc(1, bytes ? bytes : 1), bytes); }

void *with_room(void *items, size_t item_bytes, size_t count, size_t *room) {
    if (count < *room) return items;
    *room = *room ? 2 * *room : 64;
    return existing(realloc(items, item_bytes * *room), item_bytes * *room);
}

char *copied(const char *text) {
    size_t bytes = strlen(text) + 1;
    return memcpy(allocate(bytes), text, bytes);
}
