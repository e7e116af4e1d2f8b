/* Streams, events and graphs. There is no time on the virtual GPU; its clock is the number of launches.
 *
 * When is an event complete? "early": at once. "late" (the default): when the host has waited for it (synchronised
 * its stream or its device), or when 1,024 more launches were queued (a real launch queue holds about that many, so
 * the GPU cannot be further behind), or when the host has asked 64 times without giving new work (it is waiting).
 * A thread that gives no work at all (ProcessGroupNCCL's watchdog) asks by the wall clock, so its questions do not
 * count. It learns of the rest when the host wants it to finish (host_drains), or has been idle for long: then the host
 * may wait for the watchdog.
 * PyTorch reuses a block that another stream has used only after its event is complete, so "late" is the upper bound
 * for memory. */
#include "cuda/streams.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "libraries/exchange.h"
#include "memory/memory.h"

#define INVALID fail(ERROR_INVALID_VALUE)

#define STREAM_MAGIC 0x73747265u
#define EVENT_MAGIC 0x6576656eu
#define GRAPH_MAGIC 0x67726170u
#define OBJECT_MAGIC 0x6f626a65u
#define QUEUE_DEPTH 1024
#define WATCHED_DEPTH (64 * QUEUE_DEPTH) /* for a thread that gives no work: when it asks is left to chance */
#define PATIENCE 64
#define IDLE_LOOKS 20 /* so often in a row there was no new work, and the process used hardly any CPU time */
#define LOOK_MICROSECONDS 90000
#define BUSY_MICROSECONDS 5000
#define CAPTURE_UNSUPPORTED 900

typedef struct { uint32_t magic; unsigned num_references; void *data; void (*destroy)(void *); } UserObject;
struct Graph {
    uint32_t magic;
    uint64_t id;
    size_t num_nodes;
    bool is_executable;
    UserObject **objects;   /* one entry for each reference */
    size_t num_objects, object_room;
};
struct Stream {
    uint32_t magic;
    int device, priority;
    unsigned flags;
    uint64_t number, synced;
    Graph *capture;         /* the graph being captured, if any */
    bool began_capture;
    Stream *next;
};
struct Event {
    uint32_t magic;
    unsigned flags;
    bool is_recorded;
    uint64_t at;            /* launch number when it was recorded */
    Stream *stream;
    Graph *capture;
    int queries;
    uint64_t asked_at;
};

uint64_t launches;
__thread bool has_launched;
static Stream default_streams[MAX_DEVICES];
static Stream *streams;     /* all but the default ones */
static uint64_t num_streams, num_captures;

static Stream *default_stream(int device) {
    Stream *s = &default_streams[device];
    s->magic = STREAM_MAGIC;
    s->device = device;
    return s;
}

Stream *stream_of(void *handle) {
    if ((uintptr_t)handle <= 2) return default_stream(current_device);
    Stream *s = handle;
    return s->magic == STREAM_MAGIC ? s : NULL;
}

int stream_device(const Stream *stream) { return stream->device; }
uint64_t stream_number(const Stream *stream) { return stream->number; }

bool note_captured_work(Stream *stream) {
    Graph *graph = stream->capture;
    if (graph) __atomic_add_fetch(&graph->num_nodes, 1, __ATOMIC_RELAXED);
    return graph != NULL;
}

static void note_edge(const Stream *stream, const Graph *graph, int edge, const char *function) {
    log_capture(function, (CaptureRecord){
        .edge = edge, .graph = (int64_t)graph->id, .device = stream->device, .stream = (int64_t)stream->number});
}

static int new_stream(void **handle, unsigned flags, int priority) {
    NEEDS(handle);
    if (!visible_device_count()) return ERROR_NO_DEVICE;
    Stream *s = allocate(sizeof *s);
    lock();
    device_state(current_device);
    *s = (Stream){.magic = STREAM_MAGIC, .device = current_device, .priority = priority, .flags = flags,
                  .number = ++num_streams, .next = streams};
    streams = s;
    unlock();
    *handle = s;
    return SUCCESS;
}

EXPORT int cudaStreamCreate(void **handle) { return fail(new_stream(handle, 0, 0)); }
EXPORT int cudaStreamCreateWithFlags(void **handle, unsigned flags) { return fail(new_stream(handle, flags, 0)); }
EXPORT int cudaStreamCreateWithPriority(void **handle, unsigned flags, int priority) {
    return fail(new_stream(handle, flags, priority));
}

EXPORT int cudaStreamDestroy(void *handle) {
    Stream *s = handle;
    if ((uintptr_t)handle <= 2 || s->magic != STREAM_MAGIC) return fail(ERROR_INVALID_HANDLE);
    lock();
    for (Stream **at = &streams; *at; at = &(*at)->next)
        if (*at == s) { *at = s->next; break; }
    s->magic = 0;
    unlock();
    /* Kept: an event may still point to it. Streams are few. */
    return SUCCESS;
}

EXPORT int cudaStreamGetPriority(void *handle, int *priority) {
    NEEDS(priority);
    Stream *s = stream_of(handle);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    *priority = s->priority;
    return SUCCESS;
}

EXPORT int cudaStreamGetFlags(void *handle, unsigned *flags) {
    NEEDS(flags);
    Stream *s = stream_of(handle);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    *flags = s->flags;
    return SUCCESS;
}

EXPORT int cudaStreamGetDevice(void *handle, int *device) {
    NEEDS(device);
    Stream *s = stream_of(handle);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    *device = s->device;
    return SUCCESS;
}

static void note_wait(int waits_for, const void *event, const Stream *stream, const char *function) {
    log_synchronization(function, (SynchronizationRecord){
        .waits_for = waits_for, .event = (intptr_t)event,
        .device = stream->device, .stream = (int64_t)stream->number});
}

static void note_event(int use, const void *event, const Stream *stream, const char *function) {
    log_event_use(function, (EventUseRecord){
        .use = use, .event = (intptr_t)event, .device = stream->device, .stream = (int64_t)stream->number});
}

void note_copy(void *to, const void *from, size_t bytes, Stream *stream, bool is_blocking, const char *function) {
    if (!is_logging() || !bytes) return;
    if (!stream) stream = default_stream(current_device);
    bool to_device = device_of(to) >= 0, from_device = device_of(from) >= 0;
    log_copy(function, (CopyRecord){
        .bytes = (int64_t)bytes,
        .route = to_device && from_device ? ROUTE_WITHIN_DEVICE : to_device ? ROUTE_TO_DEVICE
                 : from_device ? ROUTE_TO_HOST : ROUTE_WITHIN_HOST,
        .is_pinned = is_pinned(to_device ? from : to), .is_blocking = is_blocking,
        .device = stream->device, .stream = (int64_t)stream->number});
}

void note_memset(size_t bytes, Stream *stream, const char *function) {
    if (!stream) stream = default_stream(current_device);
    log_memset(function, (MemsetRecord){
        .bytes = (int64_t)bytes, .device = stream->device, .stream = (int64_t)stream->number});
}

void host_synchronizes(int device) {
    note_wait(WAITS_FOR_DEVICE, NULL, default_stream(device), "host_synchronizes");
    lock();
    device_state(device)->synced = launches;
    unlock();
    pools_at_synchronization(device);
}

EXPORT int cudaDeviceSynchronize(void) {
    if (!visible_device_count()) return fail(ERROR_NO_DEVICE);
    host_synchronizes(current_device);
    return SUCCESS;
}

EXPORT int cudaStreamSynchronize(void *handle) {
    Stream *s = stream_of(handle);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    if (s->capture) return fail(CAPTURE_UNSUPPORTED);
    note_wait(WAITS_FOR_STREAM, NULL, s, "cudaStreamSynchronize");
    lock();
    s->synced = launches;
    unlock();
    pools_at_synchronization(s->device);
    return SUCCESS;
}

EXPORT int cudaStreamQuery(void *handle) {
    Stream *s = stream_of(handle);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    return s->capture ? fail(CAPTURE_UNSUPPORTED) : SUCCESS;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static Event *event_of(void *handle) {
    Event *e = handle;
    return e && e->magic == EVENT_MAGIC ? e : NULL;
}

EXPORT int cudaEventCreateWithFlags(void **handle, unsigned flags) {
    NEEDS(handle);
    if (!visible_device_count()) return fail(ERROR_NO_DEVICE);
    Event *e = allocate(sizeof *e);
    e->magic = EVENT_MAGIC;
    e->flags = flags;
    *handle = e;
    return SUCCESS;
}

bool is_interprocess_event(void *handle) {
    Event *e = event_of(handle);
    return e && e->flags & EVENT_INTERPROCESS;
}

EXPORT int cudaEventCreate(void **handle) { return cudaEventCreateWithFlags(handle, 0); }

EXPORT int cudaEventDestroy(void *handle) {
    Event *e = event_of(handle);
    if (!e) return fail(ERROR_INVALID_HANDLE);
    e->magic = 0;
    free(e);
    return SUCCESS;
}

EXPORT int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags UNUSED) {
    Event *e = event_of(event);
    Stream *s = stream_of(stream);
    if (!e || !s) return fail(ERROR_INVALID_HANDLE);
    lock();
    e->is_recorded = true;
    e->at = launches;
    e->stream = s;
    e->capture = s->capture;
    e->queries = 0;
    unlock();
    note_event(USE_RECORD, e, s, "cudaEventRecord");
    return SUCCESS;
}

EXPORT int cudaEventRecord(void *event, void *stream) { return cudaEventRecordWithFlags(event, stream, 0); }

static int draining; /* threads */
void foretell_drain(int is_wanted) { __atomic_add_fetch(&draining, is_wanted ? 1 : -1, __ATOMIC_RELAXED); }

static int64_t microseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Asked with the lock held. A host that computes, or waits for other ranks, is not idle. */
static bool is_host_idle(void) {
    static uint64_t launches_then;
    static int64_t looked, cpu_then;
    static int num_idle;
    int64_t now = microseconds(CLOCK_MONOTONIC), cpu = microseconds(CLOCK_PROCESS_CPUTIME_ID);
    if (launches != launches_then) num_idle = 0;
    if (launches != launches_then || now - looked >= LOOK_MICROSECONDS) {
        num_idle = cpu - cpu_then < BUSY_MICROSECONDS && !waits_for_ranks() ? num_idle + 1 : 0;
        launches_then = launches;
        looked = now;
        cpu_then = cpu;
    }
    return num_idle > IDLE_LOOKS;
}

static bool is_complete(Event *e) {
    lock();
    uint64_t now = launches, synced = 0;
    bool answer = !e->is_recorded || !card()->events_late;
    if (!answer) {
        Device *d = device_state(e->stream->device);
        synced = e->stream->synced > d->synced ? e->stream->synced : d->synced;
        answer = synced >= e->at;
        if (!answer && has_launched) {
            if (e->asked_at != now) e->asked_at = now, e->queries = 0;
            answer = now - e->at >= QUEUE_DEPTH || ++e->queries > PATIENCE;
        } else if (!answer) {
            answer = now - e->at >= WATCHED_DEPTH || draining > 0 || is_host_idle();
        }
    }
    unlock();
    return answer;
}

EXPORT int cudaEventQuery(void *handle) {
    Event *e = event_of(handle);
    if (!e) return fail(ERROR_INVALID_HANDLE);
    return is_complete(e) ? SUCCESS : fail(ERROR_NOT_READY);
}

EXPORT int cudaEventSynchronize(void *handle) {
    Event *e = event_of(handle);
    if (!e) return fail(ERROR_INVALID_HANDLE);
    if (e->stream) note_wait(WAITS_FOR_EVENT, e, e->stream, "cudaEventSynchronize");
    lock();
    if (e->is_recorded && e->stream->synced < e->at) e->stream->synced = e->at;
    e->is_recorded = false; /* complete from now on */
    unlock();
    return SUCCESS;
}

/* Deterministic and positive: 10 microseconds a launch. Autotuners compare these times, and zero breaks them. */
EXPORT int cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
    NEEDS(milliseconds);
    Event *a = event_of(start), *b = event_of(end);
    if (!a || !b) return fail(ERROR_INVALID_HANDLE);
    *milliseconds = 0.01f * (float)(b->at > a->at ? b->at - a->at : 0) + 0.001f;
    return SUCCESS;
}
EXPORT int cudaEventElapsedTime_v2(float *milliseconds, void *start, void *end) {
    return cudaEventElapsedTime(milliseconds, start, end);
}

/* Work waits for work on the GPU, not for the host: nothing to do, but a stream that waits for a capturing one joins
 * it. */
EXPORT int cudaStreamWaitEvent(void *stream, void *event, unsigned flags UNUSED) {
    Stream *s = stream_of(stream);
    Event *e = event_of(event);
    if (!s || !e) return fail(ERROR_INVALID_HANDLE);
    note_event(USE_WAIT, e, s, "cudaStreamWaitEvent");
    lock();
    if (e->capture && e->stream && e->stream->capture == e->capture) s->capture = e->capture;
    unlock();
    return SUCCESS;
}

/* The virtual GPU has always finished, so a host function runs where it is queued; while capturing it becomes a
 * node. */
EXPORT int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    NEEDS(function);
    Stream *s = stream_of(stream);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    if (!note_captured_work(s)) function(data);
    return SUCCESS;
}

EXPORT int cudaStreamAddCallback(void *stream, void (*callback)(void *, int, void *), void *data,
                                 unsigned flags UNUSED) {
    NEEDS(callback);
    Stream *s = stream_of(stream);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    if (!note_captured_work(s)) callback(stream, SUCCESS, data);
    return SUCCESS;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static __thread int capture_mode; /* cudaStreamCaptureModeGlobal */

EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode) {
    NEEDS(mode);
    int old = capture_mode;
    capture_mode = *mode;
    *mode = old;
    return SUCCESS;
}

static Graph *graph_of(void *handle) {
    Graph *g = handle;
    return g && g->magic == GRAPH_MAGIC ? g : NULL;
}

EXPORT int cudaStreamBeginCapture(void *stream, int mode UNUSED) {
    Stream *s = stream_of(stream);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    if (s->capture || (uintptr_t)stream <= 1) return fail(CAPTURE_UNSUPPORTED); /* the legacy stream cannot capture */
    Graph *g = allocate(sizeof *g);
    lock();
    *g = (Graph){.magic = GRAPH_MAGIC, .id = ++num_captures};
    s->capture = g;
    s->began_capture = true;
    unlock();
    note_edge(s, g, EDGE_BEGIN, "cudaStreamBeginCapture");
    return SUCCESS;
}

EXPORT int cudaStreamEndCapture(void *stream, void **graph) {
    NEEDS(graph);
    Stream *s = stream_of(stream);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    if (!s->began_capture) return fail(ERROR_CAPTURE_UNMATCHED);
    lock();
    Graph *g = s->capture;
    for (Stream *other = streams; other; other = other->next)
        if (other->capture == g) other->capture = NULL;
    for (int i = 0; i < MAX_DEVICES; i++)
        if (default_streams[i].capture == g) default_streams[i].capture = NULL;
    s->capture = NULL;
    s->began_capture = false;
    unlock();
    note_edge(s, g, EDGE_END, "cudaStreamEndCapture");
    *graph = g;
    return SUCCESS;
}

EXPORT int cudaStreamIsCapturing(void *stream, int *status) {
    NEEDS(status);
    Stream *s = stream_of(stream);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    *status = s->capture != NULL;
    return SUCCESS;
}

static int capture_info(void *stream, int *status, unsigned long long *id, void **graph, void **dependencies,
                        size_t *num_dependencies) {
    NEEDS(status);
    Stream *s = stream_of(stream);
    if (!s) return fail(ERROR_INVALID_HANDLE);
    *status = s->capture != NULL;
    if (id) *id = s->capture ? s->capture->id : 0;
    if (graph) *graph = s->capture;
    if (dependencies) *dependencies = NULL;
    if (num_dependencies) *num_dependencies = 0;
    return SUCCESS;
}

EXPORT int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph,
                                       void **dependencies, size_t *n) {
    return capture_info(stream, status, id, graph, dependencies, n);
}

EXPORT int cudaStreamGetCaptureInfo_v3(void *stream, int *status, unsigned long long *id, void **graph,
                                       void **dependencies, void **edges, size_t *n) {
    if (edges) *edges = NULL;
    return capture_info(stream, status, id, graph, dependencies, n);
}

/* One name, two signatures: three arguments in CUDA 12, seven in CUDA 13. */
EXPORT int capture_info_12(void *stream, int *status, unsigned long long *id);
int capture_info_12(void *stream, int *status, unsigned long long *id) {
    return capture_info(stream, status, id, NULL, NULL, NULL);
}
EXPORT int capture_info_13(void *stream, int *status, unsigned long long *id, void **graph, void **dependencies,
                           void **edges, size_t *n);
int capture_info_13(void *stream, int *status, unsigned long long *id, void **graph, void **dependencies, void **edges,
                    size_t *n) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, n);
}
__asm__(".symver capture_info_12, cudaStreamGetCaptureInfo@libcudart.so.12");
__asm__(".symver capture_info_13, cudaStreamGetCaptureInfo@@libcudart.so.13");

EXPORT int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) {
    Graph *g = graph_of(graph);
    if (!g || !count) return fail(ERROR_INVALID_HANDLE);
    if (nodes) return fail(unimplemented("cudaGraphGetNodes (the nodes themselves)", ERROR_NOT_SUPPORTED));
    *count = g->num_nodes;
    return SUCCESS;
}

/* What graphs need until the last that refers to it is destroyed, and an executable refers to what its graph does. The
 * real one calls `destroy` from a thread of its own. */
static void release_object(UserObject *object, unsigned count) {
    unsigned left = __atomic_sub_fetch(&object->num_references, count, __ATOMIC_ACQ_REL);
    if (left) return;
    object->magic = 0;
    object->destroy(object->data);
    free(object);
}
static bool is_object(const UserObject *object) { return object && object->magic == OBJECT_MAGIC; }
static void retain_object(Graph *g, UserObject *object) {
    g->objects = with_room(g->objects, sizeof(UserObject *), g->num_objects, &g->object_room);
    g->objects[g->num_objects++] = object;
}
EXPORT int cudaUserObjectCreate(UserObject **object, void *data, void (*destroy)(void *), unsigned count,
                                unsigned flags) {
    NEEDS(object, destroy);
    if (!count || flags != 1) return fail(ERROR_INVALID_VALUE); /* cudaUserObjectNoDestructorSync */
    *object = allocate(sizeof **object);
    **object = (UserObject){OBJECT_MAGIC, count, data, destroy};
    return SUCCESS;
}
EXPORT int cudaUserObjectRetain(UserObject *object, unsigned count) {
    if (!is_object(object)) return fail(ERROR_INVALID_VALUE);
    __atomic_add_fetch(&object->num_references, count, __ATOMIC_ACQ_REL);
    return SUCCESS;
}
EXPORT int cudaUserObjectRelease(UserObject *object, unsigned count) {
    if (!is_object(object)) return fail(ERROR_INVALID_VALUE);
    release_object(object, count);
    return SUCCESS;
}
EXPORT int cudaGraphRetainUserObject(void *graph, UserObject *object, unsigned count, unsigned flags) {
    Graph *g = graph_of(graph);
    if (!g || !is_object(object)) return fail(ERROR_INVALID_VALUE);
    if (!(flags & 1)) cudaUserObjectRetain(object, count); /* else cudaGraphUserObjectMove: those of the caller */
    for (unsigned i = 0; i < count; i++) retain_object(g, object);
    return SUCCESS;
}
EXPORT int cudaGraphReleaseUserObject(void *graph, UserObject *object, unsigned count) {
    Graph *g = graph_of(graph);
    if (!g || !is_object(object)) return fail(ERROR_INVALID_VALUE);
    unsigned found = 0;
    for (size_t i = g->num_objects; i-- > 0 && found < count;)
        if (g->objects[i] == object) {
            g->objects[i] = g->objects[--g->num_objects];
            found++;
        }
    if (found) release_object(object, found);
    return found == count ? SUCCESS : fail(ERROR_INVALID_VALUE);
}

EXPORT int cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags UNUSED) {
    NEEDS(executable);
    Graph *g = graph_of(graph);
    if (!g) return fail(ERROR_INVALID_HANDLE);
    Graph *x = allocate(sizeof *x);
    *x = (Graph){.magic = GRAPH_MAGIC, .id = g->id, .num_nodes = g->num_nodes, .is_executable = true};
    for (size_t i = 0; i < g->num_objects; i++) {
        cudaUserObjectRetain(g->objects[i], 1);
        retain_object(x, g->objects[i]);
    }
    *executable = x;
    return SUCCESS;
}
EXPORT int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

EXPORT int cudaGraphLaunch(void *executable, void *stream) {
    Graph *g = graph_of(executable);
    Stream *s = stream_of(stream);
    if (!g || !s || !g->is_executable) return fail(ERROR_INVALID_HANDLE);
    __atomic_add_fetch(&launches, g->num_nodes, __ATOMIC_RELAXED);
    log_graph_launch("cudaGraphLaunch", (GraphLaunchRecord){
        .num_nodes = (int64_t)g->num_nodes, .graph = (int64_t)g->id, .device = s->device,
        .stream = (int64_t)s->number});
    return SUCCESS;
}

static int destroy_graph(void *graph) {
    Graph *g = graph_of(graph);
    if (!g) return fail(ERROR_INVALID_HANDLE);
    g->magic = 0;
    for (size_t i = 0; i < g->num_objects; i++) release_object(g->objects[i], 1);
    free(g->objects);
    free(g);
    return SUCCESS;
}
EXPORT int cudaGraphDestroy(void *graph) { return destroy_graph(graph); }
EXPORT int cudaGraphExecDestroy(void *executable) { return destroy_graph(executable); }
