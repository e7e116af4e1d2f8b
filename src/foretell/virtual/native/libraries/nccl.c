/* NCCL: communicators of one rank, of several local GPUs, or of several processes. What the host may look at (integers,
 * small data) is really exchanged (exchange.c), as far as it is known. All else becomes unknown, and nobody waits for
 * it. Ranks that have been ended early are taken to contribute what this one does. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "libraries/exchange.h"
#include "memory/ranges.h"

typedef struct { char bytes[128]; } UniqueId;
typedef struct {
    int rank, num_ranks, device;
    int num_splits;
    bool is_local;         /* several GPUs of this process */
    uint64_t id;
    int32_t *members;      /* their ranks in the job, if only some of those run, else NULL */
    struct CommunicatorUse *use;
    int num_told;          /* messages to everybody: one for each collective that is exchanged */
    bool *is_absent;       /* by rank, as all below */
    bool *has_received;    /* something, while nothing was sent */
    bool *is_late;         /* it was started when this rank needed it, and has said all that is skipped already */
    int *to_skip, *num_mirrored; /* messages to everybody, and those sent to this one that it was taken to have sent */
    Place *heard;          /* what each has told everybody */
    Place *received;       /* what each has sent to this one */
    uint64_t *asked;       /* what is connected: for each operation a bit for each size, or a word for each peer */
    void **buffers;        /* on the card */
    size_t num_buffers, buffer_room;
} Communicator;
#define NCCL_SUCCESS 0
#define NCCL_CUDA_ERROR 1
#define NCCL_SYSTEM_ERROR 2
#define NCCL_INVALID_ARGUMENT 4
#define NCCL_INVALID_USAGE 5
#define NCCL_REMOTE_ERROR 6
#define INVALID NCCL_INVALID_ARGUMENT
#define SPLITS 16 /* ncclCommSplit, among the operations as subjects of messages */
#define MAX_EXCHANGED ((size_t)64 << 20) /* of integers */

static char last_error_text[2304];

static int failed(int error, const char *text) {
    strncpy(last_error_text, text, sizeof last_error_text - 1);
    return error;
}

static uint64_t hash(uint64_t h, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) h = (h ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return h;
}
static uint64_t hash_of(const UniqueId *id) { return hash(14695981039346656037u, id, sizeof *id); }

/* ---- what communicators were used for ---------------------------------------------------------------------------- */

/* Stays when the communicator is gone. */
typedef struct CommunicatorUse {
    uint64_t id;
    int num_ranks;
    int32_t *members;
    uint32_t operations;   /* a bit for each */
    bool *is_neighbour;    /* in a pipeline: received from, and at another time sent to */
    int64_t bytes;         /* of buffers */
    struct CommunicatorUse *next;
} CommunicatorUse;
static CommunicatorUse *uses;
static pthread_mutex_t uses_mutex = PTHREAD_MUTEX_INITIALIZER;

static CommunicatorUse *new_use(uint64_t id, int num_ranks, int32_t *members) {
    CommunicatorUse *use = allocate(sizeof *use);
    pthread_mutex_lock(&uses_mutex);
    *use = (CommunicatorUse){.id = id, .num_ranks = num_ranks, .members = members, .next = uses};
    use->is_neighbour = allocate((size_t)num_ranks * sizeof *use->is_neighbour);
    uses = use;
    pthread_mutex_unlock(&uses_mutex);
    return use;
}

/* One after the other, newest first; false: there is no such one. `members` (-1: not known) and `are_neighbours` have
 * room for so many ranks. */
EXPORT int foretell_communicator_use(int number, int64_t *values, int32_t *members, bool *are_neighbours, int room);
int foretell_communicator_use(int number, int64_t *values, int32_t *members, bool *are_neighbours, int room) {
    pthread_mutex_lock(&uses_mutex);
    CommunicatorUse *use = uses;
    for (int i = 0; i < number && use; i++) use = use->next;
    pthread_mutex_unlock(&uses_mutex);
    if (!use) return 0;
    values[0] = use->num_ranks;
    values[1] = use->operations;
    values[2] = use->bytes;
    values[3] = (int64_t)use->id;
    for (int i = 0; i < room && i < use->num_ranks; i++) {
        members[i] = use->members ? use->members[i] : -1;
        are_neighbours[i] = use->is_neighbour[i];
    }
    return 1;
}

/* ---- which ranks run --------------------------------------------------------------------------------------------- */

/* In a job of which only some ranks run the Python side tells who is in a communicator, and its name: all that run
 * must find the same, also one that is started later. */
typedef struct Told {
    uint64_t unique_id, id;
    int num_ranks;
    int32_t *members;
    struct Told *next;
} Told;
static Told *told, *next_split;
static pthread_mutex_t told_mutex = PTHREAD_MUTEX_INITIALIZER;
static int (*start_rank)(int rank, const char *what);
static int are_replicas;

static Told *new_told(int num_ranks, const int32_t *members) {
    Told *new = allocate(sizeof *new);
    *new = (Told){.num_ranks = num_ranks, .members = allocate((size_t)num_ranks * sizeof *members)};
    memcpy(new->members, members, (size_t)num_ranks * sizeof *members);
    return new;
}

EXPORT void foretell_communicator(const UniqueId *unique_id, uint64_t id, int num_ranks, const int32_t *members);
void foretell_communicator(const UniqueId *unique_id, uint64_t id, int num_ranks, const int32_t *members) {
    Told *new = new_told(num_ranks, members);
    new->unique_id = hash_of(unique_id);
    new->id = id;
    pthread_mutex_lock(&told_mutex);
    new->next = told;
    told = new;
    pthread_mutex_unlock(&told_mutex);
}

/* Also what the communicator would have: its members. */
EXPORT void foretell_next_split(int num_ranks, const int32_t *members);
void foretell_next_split(int num_ranks, const int32_t *members) {
    next_split = num_ranks ? new_told(num_ranks, members) : NULL;
}

/* `function` starts a rank that does not run, because this one needs its data; 0: it does not. */
EXPORT void foretell_on_need(int (*function)(int rank, const char *what));
void foretell_on_need(int (*function)(int rank, const char *what)) { start_rank = function; }

/* While this is so, the others have the same parameters and buffers: nobody is needed for theirs. */
EXPORT void foretell_replicas(int are);
void foretell_replicas(int are) { are_replicas += are ? 1 : -1; }

static const Told *find_told(uint64_t unique_id) {
    pthread_mutex_lock(&told_mutex);
    Told *found = told;
    while (found && found->unique_id != unique_id) found = found->next;
    pthread_mutex_unlock(&told_mutex);
    return found;
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

EXPORT int ncclGetVersion(int *version);

/* What each call connects, and how much that takes, is worked out in Python (rules/nccl.py), which is asked once for
 * each kind and size of call, and for each peer. */
static const char BUFFERS[] = "NCCL buffers";
#define CREATED (-1)
#define FIRST_OF_PEERS OPERATION_SEND /* operations before it are told apart by size */
typedef int64_t (*ConnectionBytes)(uint64_t id, int num_ranks, int rank, const int32_t *members, int operation,
                                   int peer, int64_t bytes);
static ConnectionBytes connection_bytes;

EXPORT void foretell_on_connection(ConnectionBytes function);
void foretell_on_connection(ConnectionBytes function) { connection_bytes = function; }

static int connect(Communicator *c, int operation, int peer, size_t bytes) {
    if (!connection_bytes) return NCCL_SUCCESS;
    if (operation != CREATED) {
        int log_size = bytes ? 63 - __builtin_clzl(bytes) : 0;
        bool is_of_peer = operation >= FIRST_OF_PEERS;
        uint64_t *asked = &c->asked[operation < FIRST_OF_PEERS ? operation : FIRST_OF_PEERS + peer];
        uint64_t bit = 1ul << (is_of_peer ? operation - FIRST_OF_PEERS : log_size);
        if (*asked & bit) return NCCL_SUCCESS;
        *asked |= bit;
    }
    int64_t wanted = connection_bytes(c->id, c->num_ranks, c->rank, c->members, operation, peer, (int64_t)bytes);
    if (wanted <= 0) return NCCL_SUCCESS;
    void *buffer;
    if (device_malloc(&buffer, (size_t)wanted, BUFFERS))
        return failed(NCCL_CUDA_ERROR, "Failed to CUDA malloc: out of memory");
    c->buffers = with_room(c->buffers, sizeof *c->buffers, c->num_buffers, &c->buffer_room);
    c->buffers[c->num_buffers++] = buffer;
    c->use->bytes += wanted;
    return NCCL_SUCCESS;
}

static void free_communicator(Communicator *c) {
    if (!c) return;
    free(c->is_absent);
    free(c->is_late);
    free(c->has_received);
    free(c->to_skip);
    free(c->num_mirrored);
    free(c->heard);
    free(c->received);
    free(c->asked);
    for (size_t i = 0; i < c->num_buffers; i++) device_free(c->buffers[i], BUFFERS);
    free(c->buffers);
    free(c);
}

static int new_communicator(void **communicator, int num_ranks, int rank, uint64_t id, const Told *about) {
    NEEDS(communicator);
    if (about && about->num_ranks != num_ranks) return failed(NCCL_INVALID_USAGE, "not the ranks of the process group");
    if (num_ranks < 1 || rank < 0 || rank >= num_ranks) return NCCL_INVALID_ARGUMENT;
    use_library(LIBRARY_NCCL);
    Communicator *c = allocate(sizeof *c);
    size_t n = (size_t)num_ranks;
    *c = (Communicator){.rank = rank, .num_ranks = num_ranks, .device = current_device, .id = id};
    c->use = new_use(id, num_ranks, about ? about->members : NULL);
    c->is_absent = allocate(n * sizeof *c->is_absent);
    c->is_late = allocate(n * sizeof *c->is_late);
    c->has_received = allocate(n * sizeof *c->has_received);
    c->to_skip = allocate(n * sizeof *c->to_skip);
    c->num_mirrored = allocate(n * sizeof *c->num_mirrored);
    c->heard = allocate(n * sizeof *c->heard);
    c->received = allocate(n * sizeof *c->received);
    c->asked = allocate((FIRST_OF_PEERS + n) * sizeof *c->asked);
    if (num_ranks > 1) {
        if (!can_exchange() || (do_some_not_run() && !about)) memset(c->is_absent, 1, n);
        if (about) c->members = about->members;
        for (int peer = 0; about && peer < num_ranks; peer++)
            c->is_absent[peer] = peer != rank && !runs_from_the_start(c->members[peer]);
        introduce(id, rank);
    }
    *communicator = c;
    return connect(c, CREATED, 0, 0);
}

static int new_by_unique_id(void **communicator, int num_ranks, int rank, const UniqueId *id) {
    const Told *about = num_ranks > 1 ? find_told(hash_of(id)) : NULL;
    return new_communicator(communicator, num_ranks, rank, about ? about->id : hash_of(id), about);
}

EXPORT int ncclGetVersion(int *version) {
    NEEDS(version);
    int (*real)(int *) = (int (*)(int *))real_function("libnccl.so.", "ncclGetVersion");
    if (real && real != ncclGetVersion) return real(version);
    *version = 22105;
    return NCCL_SUCCESS;
}
EXPORT int ncclGetUniqueId(UniqueId *id) {
    NEEDS(id);
    return getrandom(id, sizeof *id, 0) == sizeof *id ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}
EXPORT int ncclCommInitRank(void **communicator, int num_ranks, UniqueId id, int rank) {
    return new_by_unique_id(communicator, num_ranks, rank, &id);
}
EXPORT int ncclCommInitRankConfig(void **communicator, int num_ranks, UniqueId id, int rank, void *config UNUSED) {
    return new_by_unique_id(communicator, num_ranks, rank, &id);
}
EXPORT int ncclCommInitRankScalable(void **communicator, int num_ranks, int rank, int num_ids, UniqueId *ids,
                                    void *config UNUSED) {
    NEEDS(ids);
    if (num_ids < 1) return NCCL_INVALID_ARGUMENT;
    return new_by_unique_id(communicator, num_ranks, rank, ids);
}
EXPORT int ncclCommInitAll(void **communicators, int count, const int *devices) {
    NEEDS(communicators);
    if (count < 1 || count > MAX_DEVICES) return NCCL_INVALID_ARGUMENT;
    UniqueId id;
    if (ncclGetUniqueId(&id)) return NCCL_SYSTEM_ERROR;
    for (int i = 0; i < count; i++) {
        int result = new_communicator(&communicators[i], count, i, hash_of(&id), NULL);
        if (result) return result;
        Communicator *c = communicators[i];
        c->device = devices ? devices[i] : i;
        c->is_local = true;
    }
    return NCCL_SUCCESS;
}

/* The rank's next message to all of the communicator. */
static Message hear_from(Communicator *c, int peer, const char *what) {
    Message message = {.answer = ABSENT};
    if (c->is_absent[peer]) return message;
    for (int rank = c->members ? c->members[peer] : -1;; free(message.data)) {
        message = hear(c->id, peer, EVERYBODY, rank, &c->heard[peer], what);
        if (message.answer != TOLD || c->to_skip[peer]-- <= 0) break;
    }
    c->to_skip[peer] = 0;
    c->is_absent[peer] = message.answer == ABSENT;
    return message;
}

/* Whether a rank that does not run is started: this one waits for it from now on, where it has not waited before. */
static bool is_started(Communicator *c, int peer, const char *what) {
    bool is_asked = c->members && start_rank && !c->is_late[peer] && !runs_from_the_start(c->members[peer]);
    if (!is_asked || !start_rank(c->members[peer], what)) return false;
    c->is_late[peer] = true;
    c->is_absent[peer] = false;
    c->to_skip[peer] = c->num_told;
    return true;
}

static int split_in_part(Communicator *from, int color, void **communicator) {
    int split = from->num_splits++, rank = 0;
    Told *about = next_split;
    *communicator = NULL;
    if (color < 0) return NCCL_SUCCESS; /* NCCL_SPLIT_NOCOLOR */
    if (!about) return failed(NCCL_INVALID_USAGE, "ncclCommSplit, where only some ranks run, needs a process group");
    next_split = NULL;
    while (rank < about->num_ranks && about->members[rank] != this_rank()) rank++;
    return new_communicator(communicator, about->num_ranks, rank,
                            hash(hash(from->id, &split, sizeof split), &color, sizeof color), about);
}

/* The ranks of one color become a communicator, ordered by their keys. */
EXPORT int ncclCommSplit(Communicator *from, int color, int key, void **communicator, void *config UNUSED) {
    NEEDS(from, communicator);
    if (from->members) return split_in_part(from, color, communicator);
    int32_t own[2] = {color, key};
    int num_ranks = 1, rank = 0, split = from->num_splits++;
    bool is_asked = from->num_ranks > 1 && !from->is_local;
    if (is_asked && !tell(from->id, from->rank, EVERYBODY, SPLITS, own, sizeof own, sizeof own))
        return failed(NCCL_SYSTEM_ERROR, last_trouble());
    for (int peer = 0; peer < from->num_ranks && from->num_ranks > 1; peer++) {
        if (peer == from->rank) continue;
        int32_t other[2] = {color, key};
        if (!from->is_local) {
            Message message = hear_from(from, peer, "ncclCommSplit");
            if (message.answer == FAILED) return failed(NCCL_REMOTE_ERROR, last_trouble());
            if (message.answer == TOLD && message.bytes == sizeof other && message.known)
                memcpy(other, message.data, sizeof other);
            free(message.data);
        }
        if (other[0] != color) continue;
        num_ranks++;
        rank += other[1] < key || (other[1] == key && peer < from->rank);
    }
    *communicator = NULL;
    if (color < 0) return NCCL_SUCCESS; /* NCCL_SPLIT_NOCOLOR */
    int result = new_communicator(communicator, num_ranks, rank,
                                  hash(hash(from->id, &split, sizeof split), &color, sizeof color), NULL);
    if (!result) ((Communicator *)*communicator)->is_local = from->is_local;
    return result;
}
/* Without some ranks, which do not call this. */
EXPORT int ncclCommShrink(Communicator *from, const int *excluded, int count, void **communicator, void *config UNUSED,
                          int flags UNUSED) {
    NEEDS(from, excluded, communicator);
    if (count < 1) return NCCL_INVALID_ARGUMENT;
    int32_t *left = allocate((size_t)from->num_ranks * sizeof *left);
    int split = from->num_splits++, num_ranks = 0, rank = -1;
    for (int peer = 0; peer < from->num_ranks; peer++) {
        bool is_excluded = false;
        for (int i = 0; i < count; i++) is_excluded |= excluded[i] == peer;
        if (peer == from->rank && !is_excluded) rank = num_ranks;
        if (!is_excluded) left[num_ranks++] = from->members ? from->members[peer] : peer;
    }
    uint64_t id = hash(hash(from->id, &split, sizeof split), left, (size_t)num_ranks * sizeof *left);
    const Told *about = from->members ? new_told(num_ranks, left) : NULL;
    free(left);
    int result = new_communicator(communicator, num_ranks, rank, id, about);
    if (!result) ((Communicator *)*communicator)->is_local = from->is_local;
    return result;
}
EXPORT int ncclCommDestroy(void *communicator) { free_communicator(communicator); return NCCL_SUCCESS; }
EXPORT int ncclCommAbort(void *communicator) { return ncclCommDestroy(communicator); }
EXPORT int ncclCommFinalize(void *communicator UNUSED) { return NCCL_SUCCESS; }
EXPORT int ncclCommCount(Communicator *c, int *count) { NEEDS(c, count); *count = c->num_ranks; return NCCL_SUCCESS; }
EXPORT int ncclCommUserRank(Communicator *c, int *rank) { NEEDS(c, rank); *rank = c->rank; return NCCL_SUCCESS; }
EXPORT int ncclCommCuDevice(Communicator *c, int *device) {
    NEEDS(c, device);
    *device = c->device;
    return NCCL_SUCCESS;
}
EXPORT int ncclCommGetAsyncError(void *c UNUSED, int *error) { NEEDS(error); *error = 0; return NCCL_SUCCESS; }
static int new_handle(void **handle) {
    NEEDS(handle);
    *handle = allocate(8);
    return NCCL_SUCCESS;
}
static int free_handle(void *handle) { free(handle); return NCCL_SUCCESS; }
EXPORT int ncclCommRegister(void *c UNUSED, void *buffer UNUSED, size_t bytes UNUSED, void **handle) {
    return new_handle(handle);
}
EXPORT int ncclCommDeregister(void *c UNUSED, void *handle) { return free_handle(handle); }
EXPORT int ncclRedOpCreatePreMulSum(int *op, void *scalar UNUSED, int type UNUSED, int residence UNUSED,
                                    void *c UNUSED) {
    NEEDS(op);
    *op = 6;
    return NCCL_SUCCESS;
}
EXPORT int ncclRedOpDestroy(int op UNUSED, void *c UNUSED) { return NCCL_SUCCESS; }
EXPORT const char *ncclGetErrorString(int error) {
    if (error == NCCL_SYSTEM_ERROR) return "a system call failed";
    if (error == NCCL_REMOTE_ERROR) return "remote process exited or there was a network error";
    return error ? "not supported by foretell's virtual GPU" : "no error";
}
EXPORT const char *ncclGetLastError(void *c UNUSED) { return last_error_text; }

/* ---- arithmetic on values that are known ------------------------------------------------------------------------- */

static const unsigned char TYPE_BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* ncclDataType_t */
enum Operator { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE };

static bool is_type(int type) { return type >= 0 && type < (int)sizeof TYPE_BYTES; }
static bool is_integer(int type) { return type <= 5; }

#define COMBINE(type) { \
        type *a = into; \
        const type *b = from; \
        for (size_t i = 0; i < count; i++) \
            a[i] = op == PRODUCT ? (type)(a[i] * b[i]) : op == MAXIMUM ? (a[i] > b[i] ? a[i] : b[i]) \
                 : op == MINIMUM ? (a[i] < b[i] ? a[i] : b[i]) : (type)(a[i] + b[i]); \
        return true; \
    }
/* False: of these types and operators nothing is known afterwards (half precision, those made for one scalar). */
static bool combine(void *into, const void *from, size_t count, int type, int op) {
    if (op > AVERAGE) return false;
    switch (type) {
        case 0: COMBINE(int8_t)
        case 1: COMBINE(uint8_t)
        case 2: COMBINE(int32_t)
        case 3: COMBINE(uint32_t)
        case 4: COMBINE(int64_t)
        case 5: COMBINE(uint64_t)
        case 7: COMBINE(float)
        case 8: COMBINE(double)
        default: return false;
    }
}

#define DIVIDE(type) for (size_t i = 0; i < count; i++) ((type *)data)[i] /= (type)by; break
static void divide(void *data, size_t count, int type, int by) {
    switch (type) {
        case 0: DIVIDE(int8_t);
        case 1: DIVIDE(uint8_t);
        case 2: DIVIDE(int32_t);
        case 3: DIVIDE(uint32_t);
        case 4: DIVIDE(int64_t);
        case 5: DIVIDE(uint64_t);
        case 7: DIVIDE(float);
        default: DIVIDE(double);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    int operation;
    const void *from;
    void *to;
    size_t count;
    int type, op, peer;    /* peer: the root, or the other end */
    Communicator *c;
    size_t known;          /* of what it contributes: so many bytes from its beginning */
} Call;

static size_t num_parts(const Call *call, bool is_multiplied) { return is_multiplied ? (size_t)call->c->num_ranks : 1; }
static size_t part_bytes(const Call *call) { return call->count * TYPE_BYTES[call->type]; }
static size_t bytes_in(const Call *call) {
    bool is_many = call->operation == OPERATION_REDUCE_SCATTER || call->operation == OPERATION_ALL_TO_ALL;
    return part_bytes(call) * num_parts(call, is_many);
}
static size_t bytes_out(const Call *call) {
    bool is_many = call->operation == OPERATION_ALL_GATHER || call->operation == OPERATION_ALL_TO_ALL ||
        call->operation == OPERATION_GATHER;
    return part_bytes(call) * num_parts(call, is_many);
}
static bool has_result(const Call *call) {
    bool is_for_one = call->operation == OPERATION_REDUCE || call->operation == OPERATION_GATHER;
    return call->operation != OPERATION_SEND && (!is_for_one || call->peer == call->c->rank);
}

/* Both ends decide by what both know, the type and the size. What is received of floating-point numbers must not be
 * waited for: a rank may ask for it before it sends what its peer needs to answer. */
static bool is_exchanged(const Call *call) {
    size_t bytes = bytes_in(call);
    if (call->c->num_ranks == 1 || !bytes) return false;
    bool is_small_integer = is_integer(call->type) && bytes <= MAX_EXCHANGED;
    if (call->operation == OPERATION_SEND || call->operation == OPERATION_RECEIVE) return is_small_integer;
    return is_small_integer || bytes <= SMALL_COPY;
}

static void put(void *to, const void *data, size_t bytes, size_t known) {
    if (known) {
        make_writable((uintptr_t)to, known);
        memmove(to, data, known);
        know_for_a_while((uintptr_t)to, known);
    }
    if (known < bytes) forget((uintptr_t)to + known, bytes - known);
}
static void put_part(const Call *call, size_t part, const Message *message, size_t offset) {
    size_t bytes = part_bytes(call), known = message->known > offset ? message->known - offset : 0;
    put((char *)call->to + part * bytes, message->data + offset, bytes, known < bytes ? known : bytes);
}

static void put_reduced(const Call *call, const Message *messages) {
    size_t bytes = part_bytes(call);
    size_t offset = call->operation == OPERATION_REDUCE_SCATTER ? bytes * (size_t)call->c->rank : 0;
    char *sum = allocate(bytes);
    bool is_known = messages[0].known >= offset + bytes;
    if (is_known) memcpy(sum, messages[0].data + offset, bytes);
    for (int peer = 1; peer < call->c->num_ranks && is_known; peer++)
        is_known = messages[peer].known >= offset + bytes &&
            combine(sum, messages[peer].data + offset, call->count, call->type, call->op);
    if (is_known && call->op == AVERAGE) divide(sum, call->count, call->type, call->c->num_ranks);
    put(call->to, sum, bytes, is_known ? bytes : 0);
    free(sum);
}

static void put_result(const Call *call, const Message *messages) {
    switch (call->operation) {
        case OPERATION_BROADCAST:
            put_part(call, 0, &messages[call->peer], 0);
            break;
        case OPERATION_ALL_GATHER: case OPERATION_GATHER:
            for (int peer = 0; peer < call->c->num_ranks; peer++) put_part(call, (size_t)peer, &messages[peer], 0);
            break;
        case OPERATION_ALL_TO_ALL:
            for (int peer = 0; peer < call->c->num_ranks; peer++)
                put_part(call, (size_t)peer, &messages[peer], part_bytes(call) * (size_t)call->c->rank);
            break;
        default:
            put_reduced(call, messages);
    }
}

static const char *const OPERATIONS[] = {
    "all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather", "all_to_all", "gather"};
static int64_t subject_of(const Call *call) { return call->operation + (int64_t)call->peer * SPLITS * 2; }

/* On a real GPU these ranks would wait for ever, or take each other's data for what it is not. */
static int disagree(const Call *call, int peer, const Message *message) {
    char text[256];
    Identity self = {.rank = call->c->rank}, other = {.rank = peer};
    identity_of(call->c->id, call->c->rank, &self);
    identity_of(call->c->id, peer, &other);
    int64_t its = message->subject % (SPLITS * 2);
    snprintf(text, sizeof text, "ranks of one group call different collectives: rank %d %s of %zu bytes, rank %d %s of "
             "%zu bytes", self.rank, OPERATIONS[call->operation], bytes_in(call), other.rank,
             its < SPLITS ? OPERATIONS[its] : "ncclCommSplit", message->bytes);
    return failed(NCCL_INVALID_USAGE, text);
}

/* Whether the data of a broadcast is what this rank has, too: of its root, of replicas, or of a root that has ended. */
static bool is_source_like(const Call *call) {
    Communicator *c = call->c;
    if (!c->is_absent[call->peer]) return call->peer == c->rank;
    return !c->members || are_replicas || runs_from_the_start(c->members[call->peer]);
}

/* What a rank that does not run tells: what this one does. Of a broadcast that is wrong, unless it is one of a group
 * that each rank is the root of (a list all-gather), or all have the same: its root is started, if anybody may look at
 * the data. */
static Message instead_of(const Call *call, const Call *calls, size_t num_calls, int peer, const Message *own) {
    Communicator *c = call->c;
    bool is_root = call->operation == OPERATION_BROADCAST && peer == call->peer;
    if (!is_root || !c->members) return *own;
    Message message = {TOLD, own->data, own->bytes, 0, own->subject};
    for (size_t i = 0; i < num_calls; i++) {
        const Call *like = &calls[i];
        bool is_own = like->operation == OPERATION_BROADCAST && like->c == c && like->peer == c->rank;
        if (!is_own || like->type != call->type) continue;
        size_t known = like->known < own->bytes ? like->known : own->bytes;
        message.data = allocate(own->bytes);
        if (known) memcpy(message.data, like->from, known);
        message.known = known;
        return message;
    }
    if (is_source_like(call)) return *own;
    return is_integer(call->type) && is_started(c, peer, call->name) ? hear_from(c, peer, call->name) : message;
}

/* Everybody tells everybody: one that has nothing to contribute still tells that it has come this far. */
static int run_collective(const Call *call, const Call *calls, size_t num_calls) {
    Communicator *c = call->c;
    if (!is_exchanged(call)) {
        if (call->to && has_result(call)) forget((uintptr_t)call->to, bytes_out(call));
        return NCCL_SUCCESS;
    }
    size_t bytes = bytes_in(call);
    bool is_source = call->operation != OPERATION_BROADCAST || is_source_like(call);
    Message own = {TOLD, allocate(bytes), bytes, is_source ? call->known : 0, subject_of(call)};
    if (own.known) memcpy(own.data, call->from, own.known);
    bool is_told = tell(c->id, c->rank, EVERYBODY, own.subject, own.data, bytes, own.known);
    int result = is_told ? NCCL_SUCCESS : failed(NCCL_SYSTEM_ERROR, last_trouble());
    Message *messages = allocate((size_t)c->num_ranks * sizeof *messages);
    for (int peer = 0; peer < c->num_ranks && !result; peer++) {
        messages[peer] = peer == c->rank ? own : hear_from(c, peer, call->name);
        if (messages[peer].answer == ABSENT) messages[peer] = instead_of(call, calls, num_calls, peer, &own);
        if (messages[peer].answer == ABSENT) messages[peer] = own; /* it was started, and has ended */
        if (messages[peer].answer == FAILED) result = failed(NCCL_REMOTE_ERROR, last_trouble());
        else if (messages[peer].subject != own.subject || messages[peer].bytes != bytes)
            result = disagree(call, peer, &messages[peer]);
    }
    c->num_told++;
    if (!result && has_result(call)) put_result(call, messages);
    for (int peer = 0; peer < c->num_ranks; peer++)
        if (messages[peer].data != own.data) free(messages[peer].data);
    free(messages);
    free(own.data);
    return result;
}

/* A rank that does not run sends what this one, in the same group, sends to itself, or else to that rank. */
static const Call *sent_alike(const Call *receive, const Call *calls, size_t num_calls) {
    const Call *like = NULL;
    for (size_t i = 0; i < num_calls; i++) {
        const Call *call = &calls[i];
        bool fits = call->operation == OPERATION_SEND && call->c == receive->c && call->type == receive->type &&
            part_bytes(call) == part_bytes(receive);
        if (fits && (call->peer == receive->c->rank || (call->peer == receive->peer && !like))) like = call;
    }
    return like;
}
static Message mirrored(const Call *receive, const Call *like) {
    size_t known = like ? like->known : 0;
    Message message = {TOLD, allocate(known ? known : 1), part_bytes(receive), known, 0};
    if (known) memcpy(message.data, like->from, known);
    return message;
}

/* While PyTorch gathers or scatters, which are sends and receives for NCCL. `own`: what this rank contributes, if it is
 * the one that gathers; ranks that do not run contribute the same. */
static __thread bool is_gather_or_scatter;
static __thread Call gathered;
EXPORT void foretell_gather_or_scatter(int is, const void *own, size_t bytes);
void foretell_gather_or_scatter(int is, const void *own, size_t bytes) {
    bool is_known = false;
    size_t run = own ? known_prefix((uintptr_t)own, bytes, &is_known) : 0;
    is_gather_or_scatter = is;
    gathered = (Call){.from = own, .known = is_known ? run : 0};
}

/* A stage of a pipeline receives from one that runs other layers, and later sends to it: the two need not look at the
 * data to depend on each other. In a ring, or an all-to-all, each does both at once, and all do the same. */
static void note_pipeline(const Call *calls, size_t num_calls) {
    bool is_there[2] = {false, false};
    if (is_gather_or_scatter) return;
    for (size_t i = 0; i < num_calls; i++) {
        is_there[0] |= calls[i].operation == OPERATION_SEND;
        is_there[1] |= calls[i].operation == OPERATION_RECEIVE;
    }
    for (size_t i = 0; i < num_calls && is_there[0] != is_there[1]; i++) {
        Communicator *c = calls[i].c;
        int peer = calls[i].peer;
        if (is_there[1] && calls[i].operation == OPERATION_RECEIVE) c->has_received[peer] = true;
        if (!is_there[0] || calls[i].operation != OPERATION_SEND || !c->has_received[peer]) continue;
        c->use->is_neighbour[peer] = true;
        if (c->is_absent[peer] && c->members && start_rank && are_roles_wanted()) start_rank(c->members[peer], NULL);
    }
}

static int receive(const Call *call, const Call *calls, size_t num_calls) {
    Communicator *c = call->c;
    size_t bytes = part_bytes(call);
    if (!is_exchanged(call) && call->peer != c->rank) {
        forget((uintptr_t)call->to, bytes);
        return NCCL_SUCCESS;
    }
    Message message = {.answer = ABSENT};
    const Call *like = gathered.from ? &gathered : sent_alike(call, calls, num_calls);
    int peer = call->peer;
    if (peer != c->rank && c->is_absent[peer] && !like) is_started(c, peer, call->name);
    if (peer != c->rank && !c->is_absent[peer]) {
        for (int rank = c->members ? c->members[peer] : -1;; free(message.data)) {
            message = hear(c->id, peer, c->rank, rank, &c->received[peer], call->name);
            if (message.answer != TOLD || c->num_mirrored[peer]-- <= 0) break;
        }
        c->num_mirrored[peer] = 0;
    } else if (peer != c->rank) c->num_mirrored[peer]++;
    if (message.answer == FAILED) return failed(NCCL_REMOTE_ERROR, last_trouble());
    if (message.answer == ABSENT) message = mirrored(call, like);
    put(call->to, message.data, bytes, message.known < bytes ? message.known : bytes);
    free(message.data);
    return NCCL_SUCCESS;
}

static int connect_for(const Call *call) {
    Communicator *c = call->c;
    bool is_of_peer = call->operation == OPERATION_SEND || call->operation == OPERATION_RECEIVE;
    if (is_of_peer && call->peer == c->rank) return NCCL_SUCCESS;
    return connect(c, call->operation, is_of_peer ? call->peer : 0, bytes_in(call));
}

/* As in NCCL, a group is one kernel, and its sends and receives do not wait for each other: all is sent first. */
static int run_calls(const Call *calls, size_t num_calls) {
    int result = NCCL_SUCCESS;
    if (num_calls) count_launch();
    note_pipeline(calls, num_calls);
    for (size_t i = 0; i < num_calls && !result; i++) result = connect_for(&calls[i]);
    if (result) return result;
    for (size_t i = 0; i < num_calls; i++) {
        const Call *call = &calls[i];
        bool is_sent = call->operation == OPERATION_SEND && is_exchanged(call) && call->peer != call->c->rank;
        if (is_sent && !tell(call->c->id, call->c->rank, call->peer, 0, call->from, part_bytes(call), call->known))
            return failed(NCCL_SYSTEM_ERROR, last_trouble());
    }
    for (size_t i = 0; i < num_calls && !result; i++) {
        const Call *call = &calls[i];
        if (call->operation == OPERATION_RECEIVE) result = receive(call, calls, num_calls);
        else if (call->operation != OPERATION_SEND) result = run_collective(call, calls, num_calls);
    }
    return result;
}

/* Among GPUs of one process, and for one rank, every collective is a copy of its own data. */
static void copy_own_data(const Call *call) {
    if (call->from && call->to && call->from != call->to)
        copy_memory(call->to, call->from, part_bytes(call), DEVICE_TO_DEVICE, call->name);
    if (call->operation == OPERATION_RECEIVE) forget((uintptr_t)call->to, part_bytes(call));
    count_launch();
    if (call->from && call->to && call->known == part_bytes(call) && !is_known((uintptr_t)call->to, call->known))
        know((uintptr_t)call->to, call->known, false); /* the call itself is a launch */
}

__thread int group_depth;
static __thread Call *queue;
static __thread size_t num_queued, queue_room;

EXPORT int ncclGroupStart(void) { group_depth++; return NCCL_SUCCESS; }
EXPORT int ncclGroupEnd(void) {
    if (group_depth && --group_depth) return NCCL_SUCCESS;
    size_t count = num_queued;
    num_queued = 0;
    return run_calls(queue, count);
}

static int call_now_or_later(Call call) {
    Communicator *c = call.c;
    NEEDS(c);
    if (!is_type(call.type) || call.peer < 0 || call.peer >= c->num_ranks) return NCCL_INVALID_ARGUMENT;
    size_t bytes = bytes_in(&call);
    if (call.from && bytes) { /* asked before the call itself counts as a launch */
        bool is_known_run;
        size_t run = known_prefix((uintptr_t)call.from, bytes, &is_known_run);
        /* the bytes of an object are known, those behind it that make all equally long are not */
        if (is_known_run && (run == bytes || is_integer(call.type))) call.known = run;
    }
    log_collective(call.name, (CollectiveRecord){
        .operation = call.operation, .count = (int64_t)call.count, .data_type = call.type,
        .bytes = (int64_t)part_bytes(&call), .num_ranks = c->num_ranks, .device = current_device});
    c->use->operations |= 1u << call.operation;
    if (c->is_local || c->num_ranks == 1) {
        copy_own_data(&call);
        return NCCL_SUCCESS;
    }
    if (!group_depth) return run_calls(&call, 1);
    queue = with_room(queue, sizeof *queue, num_queued, &queue_room);
    queue[num_queued++] = call;
    return NCCL_SUCCESS;
}

#define CALL(operation_, from_, to_, ...) call_now_or_later((Call){ \
    .name = __func__, .operation = operation_, .from = from_, .to = to_, .count = count, .type = type, .c = c, \
    __VA_ARGS__})
EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, Communicator *c) {
    return CALL(OPERATION_ALL_REDUCE, from, to, .op = op);
}
EXPORT int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Communicator *c) {
    return CALL(OPERATION_BROADCAST, from, to, .peer = root);
}
EXPORT int ncclBcast(void *buffer, size_t count, int type, int root, Communicator *c) {
    return CALL(OPERATION_BROADCAST, buffer, buffer, .peer = root);
}
EXPORT int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, Communicator *c) {
    return CALL(OPERATION_REDUCE, from, to, .op = op, .peer = root);
}
EXPORT int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, Communicator *c) {
    return CALL(OPERATION_REDUCE_SCATTER, from, to, .op = op);
}
EXPORT int ncclAllGather(const void *from, void *to, size_t count, int type, Communicator *c) {
    return CALL(OPERATION_ALL_GATHER, from, to, .op = SUM);
}
EXPORT int ncclAlltoAll(const void *from, void *to, size_t count, int type, Communicator *c) {
    return CALL(OPERATION_ALL_TO_ALL, from, to, .op = SUM);
}
EXPORT int ncclGather(const void *from, void *to, size_t count, int type, int root, Communicator *c) {
    return CALL(OPERATION_GATHER, from, to, .peer = root);
}
EXPORT int ncclSend(const void *from, size_t count, int type, int peer, Communicator *c) {
    return CALL(OPERATION_SEND, from, NULL, .peer = peer);
}
EXPORT int ncclRecv(void *to, size_t count, int type, int peer, Communicator *c) {
    return CALL(OPERATION_RECEIVE, NULL, to, .peer = peer);
}
