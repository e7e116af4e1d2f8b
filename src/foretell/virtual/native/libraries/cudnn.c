/* cuDNN. Tensor and other plain descriptors need no GPU and stay the real library's; here is what wants a handle.
 *
 * Convolutions (and attention) go through the graph API: operation graph -> heuristics -> engine configurations ->
 * execution plan, whose workspace PyTorch then allocates. cuDNN 9.8 and newer plans for a described device without
 * having one, so the calls are passed on to the installed library with our card's description: engines and
 * workspaces are the real ones. Older versions cannot; for them the graph is kept here and a rule gives the
 * workspace. */
#include "core/vgpu.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "libraries/convolution.h"
#include "cuda/device.h"

enum { NOT_INITIALIZED = 1001, BAD_PARAM = 2000, NOT_SUPPORTED = 3000 }; /* cudnnStatus_t of cuDNN 9 */
#define INVALID BAD_PARAM
enum { TYPE_HANDLE = 0, TYPE_INT64 = 3, TYPE_DESCRIPTOR = 15, TYPE_BEHAVIOR_NOTE = 19, TYPE_CHAR = 24 };
enum { RUNTIME_COMPILATION = 0 }; /* cudnnBackendBehaviorNote_t */
enum { /* descriptor types */
    ENGINE = 2, ENGINE_CONFIG = 3, HEURISTICS = 4, PLAN = 5, DEVICE_PROPERTIES = 38,
};
enum { /* attributes: CUDNN_ATTR_... of cudnn_graph.h */
    HEURISTICS_GRAPH = 201, HEURISTICS_RESULTS = 202, HEURISTICS_DEVICE = 204, CONFIG_ENGINE = 300,
    CONFIG_WORKSPACE = 303, PLAN_CONFIG = 401, PLAN_WORKSPACE = 402, PLAN_DEVICE = 407, GRAPH_OPERATIONS = 801,
    GRAPH_NUM_ENGINES = 802, TENSOR_TYPE = 901, TENSOR_DIMENSIONS = 902, PACK_WORKSPACE = 1003, ENGINE_GRAPH = 1300,
    ENGINE_INDEX = 1301, ENGINE_BEHAVIOR = 1305, ENGINE_DEVICE = 1307, DEVICE_JSON = 2702,
};
enum { /* attributes: CUDNN_ATTR_OPERATION_... of cudnn_graph.h */
    CONVOLUTION_FORWARD_W = 703, CONVOLUTION_FORWARD_X, CONVOLUTION_FORWARD_Y,
    CONVOLUTION_BWD_DATA_W = 709, CONVOLUTION_BWD_DATA_DX, CONVOLUTION_BWD_DATA_DY,
    CONVOLUTION_BWD_FILTER_DW = 715, CONVOLUTION_BWD_FILTER_X, CONVOLUTION_BWD_FILTER_DY,
};

/* ---- handles ----------------------------------------------------------------------------------------------------- */

typedef struct { void *stream; } Handle;

EXPORT int cudnnCreate(void **handle) {
    NEEDS(handle);
    if (!visible_device_count()) return NOT_INITIALIZED;
    use_library(LIBRARY_CUDNN);
    *handle = allocate(sizeof(Handle));
    return 0;
}
EXPORT int cudnnDestroy(void *handle) { free(handle); return 0; }
EXPORT int cudnnSetStream(Handle *handle, void *stream) { NEEDS(handle); handle->stream = stream; return 0; }
EXPORT int cudnnGetStream(Handle *handle, void **stream) { NEEDS(handle, stream); *stream = handle->stream; return 0; }

/* ---- descriptors of the graph API: ours, each with the real one behind it where the real library plans ----------- */

/* The operation is copied from descriptor to descriptor, graph, heuristics, configuration and plan, since callers
 * destroy one once the next has been made from it. */
typedef struct {
    int type, choice;
    Shape shape;
    Operation operation;
    void *real, *workspace;
    bool is_unbuilt; /* a plan that need not be built: its configuration has told workspace_bytes */
    int64_t workspace_bytes;
} Descriptor;

static struct {
    int (*create)(int, void **), (*destroy)(void *), (*finalize)(void *);
    int (*set)(void *, int, int, int64_t, const void *), (*get)(void *, int, int, int64_t, int64_t *, void *);
    void *device; /* the description of the card, finalized */
} real;
static bool plans_itself;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Inside the real library its own calls to these functions may come back to us; they are passed straight on. */
static __thread bool is_inside;

/* The keys are those of cuDNN's own JSON form of a device: it wants all it knows, the width of the bus from 9.27 on,
 * and leaves others alone. */
static int describe_card(char *json, size_t room) {
    const Card *c = card();
    return snprintf(json, room,
        "{\"cudaDeviceId\":0,\"deviceVer\":%lld,\"driverVer\":%d,\"maxGridSize\":[2147483647,65535,65535],"
        "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"multiProcessorCount\":%lld,\"smCountOrigin\":0,"
        "\"warpSize\":32,\"maxSharedMemoryPerBlock\":%lld,"
        "\"maxSharedMemoryPerBlockOptin\":%lld,\"reservedSharedMemoryPerBlock\":%d,\"oversizedSharedMemoryPerBlock\":0,"
        "\"maxRegistersPerSM\":%lld,\"maxCtasPerSM\":%lld,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%lld,"
        "\"pciDeviceId\":%lld,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"totalGlobalMem\":%lld,"
        "\"smClockRateKHz\":%lld,\"memClockRateKHz\":%lld,"
        "\"memoryBusWidth\":%lld,\"l2CacheSize\":%lld,\"deviceName\":\"%s\"}",
        (long long)(100 * c->major + 10 * c->minor), runtime_version(), (long long)c->sms,
        (long long)c->shared_per_block, (long long)c->shared_per_block_optin, c->major >= 8 ? 1024 : 0,
        (long long)c->registers_per_sm, (long long)c->blocks_per_sm, (long long)c->threads_per_sm,
        (long long)c->pci_device_id, (long long)c->total, (long long)c->clock_khz, (long long)c->memory_clock_khz,
        (long long)c->bus_bits, (long long)c->l2, c->name);
}

static void find_real(void) {
    static const char *library = "libcudnn.so.";
    size_t (*version)(void) = (size_t (*)(void))real_function(library, "cudnnGetVersion");
    if (!version || version() < 90800) return;
    real.create = (int (*)(int, void **))real_function(library, "cudnnBackendCreateDescriptor");
    real.destroy = (int (*)(void *))real_function(library, "cudnnBackendDestroyDescriptor");
    real.finalize = (int (*)(void *))real_function(library, "cudnnBackendFinalize");
    real.set = (int (*)(void *, int, int, int64_t, const void *))real_function(library, "cudnnBackendSetAttribute");
    real.get =
        (int (*)(void *, int, int, int64_t, int64_t *, void *))real_function(library, "cudnnBackendGetAttribute");
    if (!real.create || !real.destroy || !real.finalize || !real.set || !real.get) return;
    char json[2048];
    int length = describe_card(json, sizeof json);
    is_inside = true;
    plans_itself = !real.create(DEVICE_PROPERTIES, &real.device) &&
        !real.set(real.device, DEVICE_JSON, TYPE_CHAR, length, json) && !real.finalize(real.device);
    is_inside = false;
    if (plans_itself) return;
    fprintf(stderr, "foretell: this cuDNN cannot be queried without a GPU; "
                    "convolution workspaces are estimated\n");
}

static bool planner(void) {
    pthread_once(&once, find_real);
    return plans_itself;
}

static int leave(int status) { is_inside = false; return status; }
#define INSIDE(call) (is_inside = true, leave(call))

EXPORT int cudnnBackendCreateDescriptor(int type, void **descriptor) {
    NEEDS(descriptor);
    if (is_inside) return real.create(type, descriptor);
    Descriptor *d = allocate(sizeof *d);
    d->type = type;
    int status = planner() ? INSIDE(real.create(type, &d->real)) : 0;
    if (status) { free(d); return status; }
    *descriptor = d;
    return 0;
}

EXPORT int cudnnBackendDestroyDescriptor(void *descriptor) {
    if (is_inside) return real.destroy(descriptor);
    Descriptor *d = descriptor;
    int status = d && d->real ? INSIDE(real.destroy(d->real)) : 0;
    free(d);
    return status;
}

static void remember(Descriptor *d, int attribute, int64_t count, const void *values) {
    switch (attribute) {
    case TENSOR_TYPE: d->shape.data_type = *(const int *)values; break;
    case TENSOR_DIMENSIONS:
        d->shape.num_dimensions = count > 8 ? 8 : (int)count;
        memcpy(d->shape.dimensions, values, sizeof(int64_t) * (size_t)d->shape.num_dimensions);
        break;
    case ENGINE_INDEX: d->choice = (int)*(const int64_t *)values; break;
    case PACK_WORKSPACE: d->workspace = *(void *const *)values; break;
    case CONVOLUTION_FORWARD_W: case CONVOLUTION_BWD_DATA_W: case CONVOLUTION_BWD_FILTER_DW:
        d->operation.w = (*(Descriptor *const *)values)->shape;
        break;
    case CONVOLUTION_FORWARD_X: case CONVOLUTION_BWD_DATA_DX: case CONVOLUTION_BWD_FILTER_X:
        d->operation.x = (*(Descriptor *const *)values)->shape;
        break;
    case CONVOLUTION_FORWARD_Y: case CONVOLUTION_BWD_DATA_DY: case CONVOLUTION_BWD_FILTER_DY:
        d->operation.y = (*(Descriptor *const *)values)->shape;
        d->operation.type = d->type;
        break;
    case HEURISTICS_GRAPH: case CONFIG_ENGINE: case PLAN_CONFIG: case GRAPH_OPERATIONS: case ENGINE_GRAPH:
        d->operation = (*(Descriptor *const *)values)->operation;
        d->choice = (*(Descriptor *const *)values)->choice;
        break;
    }
}

/* Some engines compile their kernel when a plan is built, which takes up to a second, and cudnn.benchmark builds every
 * plan: most of a minute for ResNet-50. Their configuration already tells the workspace, so such a plan is not built.
 * The two sizes were the same for all that were compared: 600 plans of cuDNN 9.10 and 9.26 for seven cards; tests/
 * test_cudnn_asked.py compares some. Building never failed. Engines that are compiled already build in microseconds. */
static bool compiles_its_kernel(void *config) {
    enum { ROOM = 16 };
    int notes[ROOM];
    int64_t count = 0;
    void *engine;
    bool does = false;
    if (INSIDE(real.create(ENGINE, &engine))) return false;
    if (!INSIDE(real.get(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &count, &engine)) &&
        !INSIDE(real.get(engine, ENGINE_BEHAVIOR, TYPE_BEHAVIOR_NOTE, ROOM, &count, notes)))
        for (int64_t i = 0; i < count && i < ROOM; i++) does |= notes[i] == RUNTIME_COMPILATION;
    INSIDE(real.destroy(engine));
    return does;
}

static bool tells_workspace(void *config, int64_t *bytes) {
    int64_t count = 0;
    return !INSIDE(real.get(config, CONFIG_WORKSPACE, TYPE_INT64, 1, &count, bytes)) && count == 1;
}

/* Puts the configurations of the wanted choice first, and keeps the order among equals. NONE: by their workspaces.
 * NEXT: those whose workspace differs from the first one's by more than a block of PyTorch's allocator and a
 * twentieth; engines often come with several sizes of their tiles. */
static void order_configs(void **configs, int64_t count) {
    if (count < 2) return;
    int64_t *bytes = allocate(sizeof *bytes * (size_t)count);
    for (int64_t i = 0; i < count; i++)
        if (!tells_workspace(configs[i], &bytes[i])) bytes[i] = INT64_MAX;
    int64_t near = bytes[0] / 20 > 512 ? bytes[0] / 20 : 512, first = bytes[0];
    for (int64_t i = 0; card()->workspaces == WORKSPACES_NEXT && i < count; i++)
        bytes[i] = bytes[i] < first - near || bytes[i] - near > first ? 0 : 1; /* now a rank: 0 comes first */
    for (int64_t i = 1; i < count; i++) { /* insertion: a few dozen, and stable */
        int64_t value = bytes[i], at = i;
        void *config = configs[i];
        for (; at > 0 && bytes[at - 1] > value; at--) bytes[at] = bytes[at - 1], configs[at] = configs[at - 1];
        bytes[at] = value, configs[at] = config;
    }
    free(bytes);
}

/* The heuristics' results for a choice other than cuDNN's own. Newer torch asks for one of them at first, so all are
 * fetched here, ordered, and exchanged for the caller's. */
static int get_chosen(Descriptor *d, int64_t room, int64_t *count, Descriptor **given) {
    int64_t found = 0;
    int status = INSIDE(real.get(d->real, HEURISTICS_RESULTS, TYPE_DESCRIPTOR, 0, &found, NULL));
    if (status) return status;
    void **configs = allocate(sizeof *configs * (size_t)(found + 1));
    for (int64_t i = 0; !status && i < found; i++) status = INSIDE(real.create(ENGINE_CONFIG, &configs[i]));
    int64_t num_made = found;
    if (!status) status = INSIDE(real.get(d->real, HEURISTICS_RESULTS, TYPE_DESCRIPTOR, num_made, &found, configs));
    if (!status) order_configs(configs, found);
    for (int64_t i = 0; !status && i < found && i < room; i++) {
        if (!given[i]) continue;
        void *mine = configs[i];
        configs[i] = given[i]->real, given[i]->real = mine, given[i]->operation = d->operation;
    }
    for (int64_t i = 0; i < num_made; i++)
        if (configs[i]) INSIDE(real.destroy(configs[i]));
    free(configs);
    if (count) *count = found < room ? found : room;
    return status;
}

EXPORT int cudnnBackendSetAttribute(void *descriptor, int attribute, int type, int64_t count, const void *values) {
    NEEDS(descriptor);
    if (is_inside) return real.set(descriptor, attribute, type, count, values);
    Descriptor *d = descriptor;
    if (type == TYPE_HANDLE) return 0; /* the card's description, added at Finalize, stands for the handle */
    if (count > 0) NEEDS(values);
    if (count > 0 && type == TYPE_DESCRIPTOR) NEEDS(*(void *const *)values);
    if (count > 0) remember(d, attribute, count, values);
    if (!d->real) return 0;
    if (type != TYPE_DESCRIPTOR) return INSIDE(real.set(d->real, attribute, type, count, values));
    Descriptor *const *given = values;
    void **behind = allocate(sizeof *behind * (size_t)(count > 0 ? count : 1));
    for (int64_t i = 0; i < count; i++) behind[i] = given[i] ? given[i]->real : NULL;
    int status = INSIDE(real.set(d->real, attribute, type, count, behind));
    if (attribute == PLAN_CONFIG && count == 1 && !status)
        d->is_unbuilt = compiles_its_kernel(behind[0]) && tells_workspace(behind[0], &d->workspace_bytes);
    free(behind);
    return status;
}

EXPORT int cudnnBackendFinalize(void *descriptor) {
    NEEDS(descriptor);
    if (is_inside) return real.finalize(descriptor);
    Descriptor *d = descriptor;
    if (!d->real) return 0;
    int attribute = d->type == HEURISTICS ? HEURISTICS_DEVICE : d->type == PLAN ? PLAN_DEVICE
        : d->type == ENGINE ? ENGINE_DEVICE : 0;
    int status = attribute ? INSIDE(real.set(d->real, attribute, TYPE_DESCRIPTOR, 1, &real.device)) : 0;
    if (status) return status;
    if (d->is_unbuilt) return 0;
    return INSIDE(real.finalize(d->real));
}

/* ---- without a planner: cuDNN before 9.8 ------------------------------------------------------------------------- */

/* What is offered: the workspace as measured or by rule, then none, to which torch falls back near the limit, as on
 * a real card, and last the largest that only cudnn.benchmark comes to try. */
enum { USUAL, NONE, LARGEST, NUM_RULED_CONFIGS };

static int64_t offered_workspace(const Descriptor *d) {
    if (d->choice == LARGEST) return largest_workspace_of(&d->operation);
    if (d->choice == NONE || card()->workspaces == WORKSPACES_NONE) return 0;
    return card()->workspaces == WORKSPACES_NEXT ? next_workspace_of(&d->operation) : workspace_of(&d->operation);
}

static int answer(int64_t number, int64_t *count, void *values) {
    if (count) *count = 1;
    if (values) *(int64_t *)values = number;
    return 0;
}

static int get_ruled(Descriptor *d, int attribute, int64_t room, int64_t *count, void *values) {
    switch (attribute) {
    case HEURISTICS_RESULTS:
        if (count) *count = NUM_RULED_CONFIGS;
        for (int64_t i = 0; values && i < room && i < NUM_RULED_CONFIGS; i++) {
            Descriptor *config = ((Descriptor **)values)[i];
            config->operation = d->operation, config->choice = (int)i;
        }
        return 0;
    case CONFIG_ENGINE:
        if (count) *count = 1;
        if (values && room > 0) (*(Descriptor **)values)->choice = d->choice;
        return 0;
    case PLAN_WORKSPACE: return answer(offered_workspace(d), count, values);
    case GRAPH_NUM_ENGINES: return answer(NUM_RULED_CONFIGS, count, values);
    case ENGINE_INDEX: return answer(d->choice, count, values);
    default: /* notes, knobs: none */
        if (count) *count = 0;
        return 0;
    }
}

EXPORT int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t room, int64_t *count,
                                    void *values) {
    NEEDS(descriptor);
    if (is_inside) return real.get(descriptor, attribute, type, room, count, values);
    Descriptor *d = descriptor;
    if (!d->real) return get_ruled(d, attribute, room, count, values);
    if (d->is_unbuilt && attribute == PLAN_WORKSPACE) return answer(d->workspace_bytes, count, values);
    if (d->is_unbuilt) { /* whatever else the caller wants to know of it */
        d->is_unbuilt = false;
        int status = INSIDE(real.finalize(d->real));
        if (status) return status;
    }
    if (type != TYPE_DESCRIPTOR || !values || room <= 0)
        return INSIDE(real.get(d->real, attribute, type, room, count, values));
    Descriptor **given = values;
    if (attribute == HEURISTICS_RESULTS && d->operation.type && card()->workspaces != WORKSPACES_ASKED)
        return get_chosen(d, room, count, given);
    void **behind = allocate(sizeof *behind * (size_t)room); /* the caller's descriptors are filled in, not replaced */
    for (int64_t i = 0; i < room; i++) behind[i] = given[i] ? given[i]->real : NULL;
    int status = INSIDE(real.get(d->real, attribute, type, room, count, behind));
    for (int64_t i = 0; i < room; i++)
        if (attribute == HEURISTICS_RESULTS && given[i]) given[i]->operation = d->operation;
    free(behind);
    return status;
}

static int64_t logged_direction(int type) {
    if (type == CONVOLUTION_FORWARD) return DIRECTION_FORWARD;
    return type == CONVOLUTION_WEIGHTS ? DIRECTION_WEIGHTS : DIRECTION_DATA;
}

static int64_t bytes_of(const Shape *shape) { return elements(shape, false) * element_bytes(shape->data_type); }

static void log_operation(const char *function, const Operation *o, int choice, int64_t workspace) {
    if (!o->type) { /* attention and whatever else the graph API computes */
        log_library_call(function, (LibraryCallRecord){.workspace_bytes = workspace, .device = current_device});
        return;
    }
    int64_t source = planner() ? WORKSPACE_SOURCE_ASKED
        : choice == USUAL && has_measured_workspace(o) ? WORKSPACE_SOURCE_MEASURED : WORKSPACE_SOURCE_RULE;
    int64_t outputs = o->w.dimensions[0]; /* each element of y is a sum over the weights of its channel */
    log_convolution(function, (ConvolutionRecord){
        .workspace_bytes = workspace, .x_bytes = bytes_of(&o->x), .y_bytes = bytes_of(&o->y),
        .w_bytes = bytes_of(&o->w), .device = current_device, .direction = logged_direction(o->type),
        .multiply_adds = outputs ? elements(&o->y, false) * (elements(&o->w, false) / outputs) : 0,
        .workspace_source = source, .data_type = o->x.data_type});
}

EXPORT int cudnnBackendExecute(void *handle UNUSED, void *plan, void *pack) {
    NEEDS(plan, pack);
    const Descriptor *d = plan;
    int64_t workspace = 0;
    if (is_logging() && cudnnBackendGetAttribute(plan, PLAN_WORKSPACE, TYPE_INT64, 1, NULL, &workspace)) workspace = 0;
    workspace_given(((Descriptor *)pack)->workspace, workspace);
    count_launch();
    if (is_logging()) log_operation("cudnnBackendExecute", &d->operation, d->choice, workspace);
    return 0;
}

/* ---- batch normalization, dropout, spatial transformers ---------------------------------------------------------- */

/* The spatial modes need no workspace in NCHW; in NHWC a few KiB, which the allocator's rounding hides. */
#define NO_BYTES(name, ...) EXPORT int name(__VA_ARGS__, size_t *bytes) { NEEDS(bytes); *bytes = 0; return 0; }
NO_BYTES(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, void *h UNUSED, int mode UNUSED, int ops UNUSED,
         void *x UNUSED, void *z UNUSED, void *y UNUSED, void *b UNUSED, void *a UNUSED)
NO_BYTES(cudnnGetBatchNormalizationBackwardExWorkspaceSize, void *h UNUSED, int mode UNUSED, int ops UNUSED,
         void *x UNUSED, void *y UNUSED, void *dy UNUSED, void *dz UNUSED, void *dx UNUSED, void *b UNUSED,
         void *a UNUSED)
NO_BYTES(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, void *h UNUSED, int mode UNUSED, int ops UNUSED,
         void *a UNUSED, void *x UNUSED)

#define ON_DEVICE(name) EXPORT int name(void) { library_call(#name); return 0; }
#define BATCH_NORM(name) EXPORT int name(void) { use_library(LIBRARY_BATCH_NORM); library_call(#name); return 0; }
BATCH_NORM(cudnnBatchNormalizationForwardInference) BATCH_NORM(cudnnBatchNormalizationForwardTrainingEx)
BATCH_NORM(cudnnBatchNormalizationBackwardEx)
ON_DEVICE(cudnnSpatialTfGridGeneratorForward) ON_DEVICE(cudnnSpatialTfGridGeneratorBackward)
ON_DEVICE(cudnnSpatialTfSamplerForward)
ON_DEVICE(cudnnSpatialTfSamplerBackward) ON_DEVICE(cudnnPoolingForward)
