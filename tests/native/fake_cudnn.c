/* A cuDNN that plans without a card and counts the plans it has built. Engine 0 is compiled already; 1 and 2 compile
 * their kernel when a plan is built, and the configuration of 2 does not tell the workspace. */
#include <stdint.h>
#include <stdlib.h>

enum { PLAN = 5 };
enum { CONFIG_ENGINE = 300, CONFIG_WORKSPACE = 303, PLAN_CONFIG = 401, ENGINE_INDEX = 1301, ENGINE_BEHAVIOR = 1305 };
enum { TOLD = 4096, BUILT = 8192, NOT_SUPPORTED = 3000 };

typedef struct { int type; int64_t engine; } Fake;
int num_built;

size_t cudnnGetVersion(void) { return 90800; }
int cudnnBackendCreateDescriptor(int type, void **descriptor) {
    Fake *f = calloc(1, sizeof *f);
    f->type = type;
    *descriptor = f;
    return 0;
}
int cudnnBackendDestroyDescriptor(void *descriptor) {
    free(descriptor);
    return 0;
}
int cudnnBackendFinalize(Fake *f) {
    num_built += f->type == PLAN;
    return 0;
}

int cudnnBackendSetAttribute(Fake *f, int attribute, int type, int64_t count, const void *values) {
    (void)type, (void)count;
    if (attribute == ENGINE_INDEX) f->engine = *(const int64_t *)values;
    if (attribute == PLAN_CONFIG) f->engine = (*(Fake *const *)values)->engine;
    return 0;
}

int cudnnBackendGetAttribute(Fake *f, int attribute, int type, int64_t room, int64_t *count, void *values) {
    (void)type, (void)room;
    *count = 1;
    if (attribute == CONFIG_ENGINE) {
        (*(Fake **)values)->engine = f->engine;
    } else if (attribute == ENGINE_BEHAVIOR) {
        *count = f->engine > 0;
        *(int *)values = 0; /* CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION */
    } else if (attribute == CONFIG_WORKSPACE) {
        if (f->engine == 2) return NOT_SUPPORTED;
        *(int64_t *)values = TOLD;
    } else {
        *(int64_t *)values = BUILT;
    }
    return 0;
}
