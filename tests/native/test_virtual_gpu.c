/* The virtual GPU's rules at the level of CUDA calls, without torch. Run under valgrind or with the address
 * sanitizer (make native-test). Prints a line a rule; the exit code says whether all held. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

int cudaGetDeviceCount(int *), cudaSetDevice(int), cudaGetDevice(int *), cudaMalloc(void **, size_t), cudaFree(void *),
    cudaMemGetInfo(size_t *, size_t *), cudaMemcpy(void *, const void *, size_t, int), cudaMemset(void *, int, size_t),
    cudaMallocAsync(void **, size_t, void *), cudaFreeAsync(void *, void *), cudaDeviceSynchronize(void),
    cudaGetLastError(void), cudaPeekAtLastError(void), cudaHostAlloc(void **, size_t, unsigned), cudaFreeHost(void *),
    cudaDeviceGetDefaultMemPool(void **, int), cudaMemPoolGetAttribute(void *, int, void *),
    cudaMemPoolTrimTo(void *, size_t), cudaEventCreateWithFlags(void **, unsigned), cudaEventRecord(void *, void *),
    cudaEventQuery(void *), cudaEventSynchronize(void *), cudaEventDestroy(void *),
    cudaEventElapsedTime(float *, void *, void *), cudaStreamCreateWithPriority(void **, unsigned, int),
    cudaStreamSynchronize(void *), cudaStreamDestroy(void *), cudaStreamBeginCapture(void *, int),
    cudaStreamEndCapture(void *, void **), cudaStreamIsCapturing(void *, int *),
    cudaGraphInstantiate(void **, void *, unsigned long long), cudaGraphLaunch(void *, void *),
    cudaGraphDestroy(void *), cudaGraphExecDestroy(void *), cudaGraphGetNodes(void *, void **, size_t *),
    cudaUserObjectCreate(void **, void *, void (*)(void *), unsigned, unsigned),
    cudaUserObjectRelease(void *, unsigned),
    cudaGraphRetainUserObject(void *, void *, unsigned, unsigned), cudaStreamBeginCaptureToGraph(void);
int cudaMallocManaged(void **, size_t, unsigned), cudaMemPrefetchAsync(const void *, size_t),
    cudaMemAdvise(const void *, size_t);
typedef struct { char bytes[64]; } Handle;
int cudaIpcGetMemHandle(Handle *, void *), cudaIpcOpenMemHandle(void **, Handle, unsigned),
    cudaIpcCloseMemHandle(void *), cudaIpcGetEventHandle(Handle *, void *);
int cuMemAddressReserve(uintptr_t *, size_t, size_t, uintptr_t, unsigned long long),
    cuMemAddressFree(uintptr_t, size_t), cuMemCreate(uint64_t *, size_t, const void *, unsigned long long),
    cuMemRelease(uint64_t), cuMemUnmap(uintptr_t, size_t),
    cuMemMap(uintptr_t, size_t, size_t, uint64_t, unsigned long long),
    cuMemGetAddressRange_v2(uintptr_t *, size_t *, uintptr_t),
    cuGetProcAddress_v2(const char *, void **, int, unsigned long long, int *), cuModuleLoadData(void **, const void *),
    cuModuleUnload(void *), cuModuleGetFunction(void **, void *, const char *),
    cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                   void **);
struct PointerAttributes { int type, device; void *device_pointer, *host_pointer; };
int cudaPointerGetAttributes(struct PointerAttributes *, const void *);
void foretell_know(uintptr_t, size_t), foretell_forget(uintptr_t, size_t), foretell_abandon(uintptr_t, size_t),
    foretell_publish(uintptr_t, size_t), foretell_real_copies(int), foretell_read_known(uintptr_t, size_t, uint8_t *),
    foretell_write_known(uintptr_t, size_t, const uint8_t *), foretell_drain(int);
int foretell_is_known(uintptr_t, size_t), foretell_is_any_known(uintptr_t, size_t), foretell_unimplemented_count(void);
const char *foretell_unimplemented_name(int);
int cudnnBackendCreateDescriptor(int, void **), cudnnBackendDestroyDescriptor(void *), cudnnBackendFinalize(void *),
    cudnnBackendSetAttribute(void *, int, int, int64_t, const void *),
    cudnnBackendGetAttribute(void *, int, int, int64_t, int64_t *, void *);

static int num_failures;
#define CHECK(condition) do { \
    if (!(condition)) num_failures++, printf("  FAILED line %d: %s\n", __LINE__, #condition); \
} while (0)

static size_t free_bytes(void) {
    size_t free_now, total;
    cudaMemGetInfo(&free_now, &total);
    return free_now;
}

static void *kernel;
static void launch(int count) {
    while (count-- > 0) CHECK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == 0);
}

static void malloc_takes_pages_of_2_mib_and_addresses_ascend(void) {
    size_t before = free_bytes();
    void *a, *b, *c;
    CHECK(cudaMalloc(&a, 1) == 0 && cudaMalloc(&b, 3 * MIB) == 0 && cudaMalloc(&c, 2 * MIB) == 0);
    CHECK(a < b && b < c);
    CHECK(before - free_bytes() == (2 + 4 + 2) * MIB);
    void *freed = b;
    CHECK(cudaFree(b) == 0 && cudaMalloc(&b, 2 * MIB) == 0);
    CHECK(b == freed); /* the lowest gap is used first */
    CHECK(cudaFree(a) == 0 && cudaFree(b) == 0 && cudaFree(c) == 0);
    CHECK(free_bytes() == before);
}

static void a_full_card_refuses_and_keeps_its_state(void) {
    size_t before = free_bytes();
    void *a, *b = &a;
    CHECK(before == 100 * MIB); /* 110 MiB less a context of 10 */
    CHECK(cudaMalloc(&a, 98 * MIB) == 0);
    CHECK(cudaMalloc(&b, 3 * MIB) == 2 && b == NULL);
    CHECK(cudaPeekAtLastError() == 2 && cudaGetLastError() == 2 && cudaGetLastError() == 0);
    CHECK(cudaMalloc(&b, 2 * MIB) == 0 && free_bytes() == 0);
    CHECK(cudaFree(a) == 0 && cudaFree(b) == 0 && free_bytes() == before);
}

static void freeing_what_is_not_there_is_an_error(void) {
    void *a;
    CHECK(cudaMalloc(&a, MIB) == 0);
    CHECK(cudaFree((char *)a + 512) == 1);
    CHECK(cudaFree(a) == 0 && cudaFree(a) == 1 && cudaFree(NULL) == 0);
    cudaGetLastError();
}

typedef struct { void *addresses[64]; pthread_barrier_t *start; int num_freed; } Freeing;

static void *free_all(void *data) {
    Freeing *freeing = data;
    pthread_barrier_wait(freeing->start);
    for (int i = 0; i < 64; i++) freeing->num_freed += cudaFreeAsync(freeing->addresses[i], NULL) == 0;
    return NULL;
}

static void of_two_threads_that_free_the_same_memory_one_gets_an_error(void) {
    int num_freed = 0;
    for (int round = 0; round < 200; round++) {
        pthread_barrier_t start;
        pthread_t thread;
        Freeing here = {.start = &start}, there = {.start = &start};
        for (int i = 0; i < 64; i++) CHECK(cudaMallocAsync(&here.addresses[i], 512, NULL) == 0);
        memcpy(there.addresses, here.addresses, sizeof here.addresses);
        pthread_barrier_init(&start, NULL, 2);
        pthread_create(&thread, NULL, free_all, &there);
        free_all(&here);
        pthread_join(thread, NULL);
        pthread_barrier_destroy(&start);
        num_freed += here.num_freed + there.num_freed;
    }
    CHECK(num_freed == 200 * 64);
    CHECK(cudaDeviceSynchronize() == 0);
    cudaGetLastError();
}

static void small_copies_are_real_until_a_kernel_may_have_written(void) {
    int values[4] = {1, 2, 3, 4}, back[4] = {0};
    void *a;
    CHECK(cudaMalloc(&a, MIB) == 0);
    CHECK(cudaMemcpy(a, values, sizeof values, 1) == 0 && cudaMemcpy(back, a, sizeof back, 2) == 0);
    CHECK(!memcmp(values, back, sizeof back));
    launch(1);
    CHECK(!foretell_is_known((uintptr_t)a, sizeof values));
    CHECK(cudaMemcpy(back, a, sizeof back, 2) == 0 && back[0] == 0 && back[3] == 0); /* the stand-in, never stale */
    CHECK(cudaMemcpy(a, values, sizeof values, 1) == 0);
    foretell_know((uintptr_t)a, sizeof values);
    launch(1);
    CHECK(cudaMemcpy(back, a, sizeof back, 2) == 0 && back[2] == 3); /* confirmed by the host */
    foretell_forget((uintptr_t)a + 4, 4);
    CHECK(cudaMemcpy(back, a, sizeof back, 2) == 0 && back[0] == 1 && back[1] == 0 && back[2] == 3);
    CHECK(cudaFree(a) == 0 && !foretell_is_known((uintptr_t)a, 4));
}

static void large_copies_are_real_only_when_marked(void) {
    size_t bytes = 128 << 10;
    char *host = malloc(bytes), *back = malloc(bytes);
    void *a;
    memset(host, 7, bytes);
    CHECK(cudaMalloc(&a, bytes) == 0 && cudaMemcpy(a, host, bytes, 1) == 0);
    CHECK(!foretell_is_known((uintptr_t)a, bytes));
    foretell_real_copies(1);
    CHECK(cudaMemcpy(a, host, bytes, 1) == 0 && foretell_is_known((uintptr_t)a, bytes));
    foretell_real_copies(0);
    CHECK(cudaMemcpy(back, a, bytes, 2) == 0 && !memcmp(host, back, bytes));
    CHECK(cudaMemset(a, 0, 1024) == 0 && cudaMemcpy(back, a, 1024, 2) == 0 && back[1023] == 0);
    CHECK(cudaFree(a) == 0);
    free(host), free(back);
}

static void knowledge_is_kept_by_range(void) {
    uintptr_t at = 0x1000;
    foretell_know(at, 100);
    foretell_know(at + 100, 50);
    CHECK(foretell_is_known(at, 150) && !foretell_is_known(at, 151));
    foretell_forget(at + 20, 10);
    CHECK(foretell_is_any_known(at + 20, 11) && !foretell_is_any_known(at + 20, 10));
    CHECK(foretell_is_known(at, 20) && !foretell_is_known(at + 15, 10) && foretell_is_known(at + 30, 120));
    foretell_know(at + 10, 30);
    CHECK(foretell_is_known(at, 150));
    foretell_forget(0, 0x10000);
    CHECK(!foretell_is_known(at, 1));
}

static void knowledge_is_read_and_written_byte_by_byte(void) {
    uintptr_t at = 0x1000;
    uint8_t known[6];
    foretell_know(at, 4);
    foretell_write_known(at, 6, (const uint8_t[]){2, 0, 0, 1, 2, 1});
    foretell_read_known(at, 6, known);
    CHECK(!memcmp(known, (const uint8_t[]){1, 0, 0, 1, 0, 1}, 6));
    foretell_forget(at, 6);
}

static void a_copy_on_the_device_keeps_what_is_known(void) {
    char *a;
    uint8_t known[6];
    CHECK(cudaMalloc((void **)&a, 1024) == 0 && cudaMemset(a, 7, 2) == 0 && cudaMemset(a + 4, 8, 2) == 0);
    CHECK(cudaMemcpy(a + 512, a, 6, 3) == 0 && a[512] == 7 && a[516] == 8);
    foretell_read_known((uintptr_t)a + 512, 6, known);
    CHECK(!memcmp(known, (const uint8_t[]){1, 1, 0, 0, 1, 1}, 6));
    CHECK(cudaFree(a) == 0);
}

static void pools_hold_their_high_water_until_trimmed(void) {
    size_t before = free_bytes();
    void *a, *b, *pool;
    uint64_t reserved = 0, used = 0;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0) == 0);
    CHECK(cudaMallocAsync(&a, 20 * MIB, NULL) == 0 && cudaMallocAsync(&b, 20 * MIB, NULL) == 0);
    cudaMemPoolGetAttribute(pool, 5, &reserved);
    cudaMemPoolGetAttribute(pool, 7, &used);
    CHECK(reserved == 64 * MIB && used == 40 * MIB && before - free_bytes() == 64 * MIB);
    CHECK(cudaFreeAsync(a, NULL) == 0 && cudaFreeAsync(b, NULL) == 0 && before - free_bytes() == 64 * MIB);
    CHECK(cudaMemPoolTrimTo(pool, 0) == 0 && free_bytes() == before);
}

static void virtual_memory_is_charged_when_created_and_freed_when_unmapped_and_released(void) {
    size_t before = free_bytes(), bytes = 20 * MIB, length;
    int properties[16] = {1, 0, 1, 0};
    uintptr_t range, base;
    uint64_t handle, second;
    CHECK(cuMemAddressReserve(&range, 4 * bytes, 0, 0, 0) == 0 && free_bytes() == before);
    CHECK(cuMemCreate(&handle, bytes, properties, 0) == 0 && before - free_bytes() == bytes);
    CHECK(cuMemMap(range, bytes, 0, handle, 0) == 0);
    /* already mapped */
    CHECK(cuMemCreate(&second, bytes, properties, 0) == 0 && cuMemMap(range, bytes, 0, second, 0) == 1);
    CHECK(cuMemMap(range + bytes, bytes, 0, second, 0) == 0 && cuMemRelease(second) == 0);
    CHECK(cuMemGetAddressRange_v2(&base, &length, range + bytes + 5) == 0 && base == range + bytes && length == bytes);
    CHECK(cuMemRelease(handle) == 0 && before - free_bytes() == 2 * bytes); /* still mapped */
    CHECK(cuMemUnmap(range, 2 * bytes) == 0 && free_bytes() == before);
    CHECK(cuMemAddressFree(range, 4 * bytes) == 0);
}

static void pointers_say_what_they_are(void) {
    struct PointerAttributes attributes;
    void *device, *host, *plain = malloc(16);
    CHECK(cudaMalloc(&device, MIB) == 0 && cudaHostAlloc(&host, 100, 0) == 0);
    CHECK(cudaPointerGetAttributes(&attributes, (char *)device + 1000) == 0 && attributes.type == 2 &&
          attributes.device == 0);
    CHECK(cudaPointerGetAttributes(&attributes, host) == 0 && attributes.type == 1);
    CHECK(cudaPointerGetAttributes(&attributes, plain) == 0 && attributes.type == 0);
    CHECK(cudaFreeHost(host) == 0 && cudaFreeHost(host) == 1 && cudaFree(device) == 0);
    cudaGetLastError();
    free(plain);
}

static void an_event_is_complete_after_a_synchronisation_or_1024_launches(void) {
    void *event, *other, *stream;
    float milliseconds = 0;
    CHECK(cudaEventCreateWithFlags(&event, 0) == 0 && cudaEventCreateWithFlags(&other, 0) == 0 &&
          cudaEventQuery(event) == 0);
    CHECK(cudaStreamCreateWithPriority(&stream, 1, 0) == 0);
    launch(1);
    CHECK(cudaEventRecord(event, stream) == 0 && cudaEventQuery(event) == 600);
    CHECK(cudaStreamSynchronize(stream) == 0 && cudaEventQuery(event) == 0);
    launch(1);
    CHECK(cudaEventRecord(event, stream) == 0);
    launch(1023);
    CHECK(cudaEventQuery(event) == 600);
    launch(1);
    CHECK(cudaEventQuery(event) == 0);
    CHECK(cudaEventRecord(other, stream) == 0 && cudaEventElapsedTime(&milliseconds, event, other) == 0 &&
          milliseconds > 0);
    int patience = 0;
    while (cudaEventQuery(other) == 600) patience++; /* a host that polls is not left waiting for ever */
    CHECK(patience > 0 && patience <= 64);
    CHECK(cudaEventDestroy(event) == 0 && cudaEventDestroy(other) == 0 && cudaStreamDestroy(stream) == 0);
    cudaGetLastError();
}

typedef struct { void *event; int num_questions, last_answer; } Watching;
static void *watch(void *given) {
    Watching *watching = given;
    for (int i = 0; i < watching->num_questions; i++) watching->last_answer = cudaEventQuery(watching->event);
    return NULL;
}
static int answer_to_a_watchdog(void *event, int num_questions) {
    Watching watching = {event, num_questions, -1};
    pthread_t thread;
    pthread_create(&thread, NULL, watch, &watching);
    pthread_join(thread, NULL);
    return watching.last_answer;
}

static void questions_of_a_thread_that_launches_nothing_do_not_count(void) {
    void *event;
    launch(1);
    CHECK(cudaEventCreateWithFlags(&event, 0) == 0 && cudaEventRecord(event, NULL) == 0);
    CHECK(answer_to_a_watchdog(event, 200) == 600 && cudaEventQuery(event) == 600);
    launch(2000);
    CHECK(answer_to_a_watchdog(event, 1) == 600 && cudaEventQuery(event) == 0);
    foretell_drain(1);
    CHECK(answer_to_a_watchdog(event, 1) == 0);
    foretell_drain(0);
    CHECK(cudaEventDestroy(event) == 0);
    cudaGetLastError();
}

static void count_up(void *count) { ++*(int *)count; }
static void an_object_lives_as_long_as_the_last_graph_that_refers_to_it(void) {
    void *stream, *graph, *executable, *object, *left;
    int num_destroyed = 0;
    CHECK(cudaStreamCreateWithPriority(&stream, 1, 0) == 0 && cudaStreamBeginCapture(stream, 0) == 0);
    CHECK(cudaStreamEndCapture(stream, &graph) == 0);
    CHECK(cudaUserObjectCreate(&object, &num_destroyed, count_up, 1, 1) == 0);
    CHECK(cudaGraphRetainUserObject(graph, object, 1, 1) == 0); /* moved */
    CHECK(cudaUserObjectCreate(&left, &num_destroyed, count_up, 2, 1) == 0);
    CHECK(cudaUserObjectRelease(left, 1) == 0 && num_destroyed == 0);
    CHECK(cudaUserObjectRelease(left, 1) == 0 && num_destroyed == 1);
    CHECK(cudaGraphInstantiate(&executable, graph, 0) == 0);
    CHECK(cudaGraphDestroy(graph) == 0 && num_destroyed == 1);
    CHECK(cudaGraphExecDestroy(executable) == 0 && num_destroyed == 2);
    CHECK(cudaStreamDestroy(stream) == 0);
}

static void a_capture_becomes_a_graph(void) {
    void *stream, *graph, *executable;
    int status = 0;
    size_t num_nodes = 0;
    CHECK(cudaStreamCreateWithPriority(&stream, 1, 0) == 0 && cudaStreamBeginCapture(stream, 0) == 0);
    CHECK(cudaStreamIsCapturing(stream, &status) == 0 && status == 1);
    CHECK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL) == 0);
    CHECK(cudaStreamEndCapture(stream, &graph) == 0 && cudaStreamIsCapturing(stream, &status) == 0 && status == 0);
    CHECK(cudaGraphGetNodes(graph, NULL, &num_nodes) == 0 && num_nodes == 1);
    CHECK(cudaGraphInstantiate(&executable, graph, 0) == 0 && cudaGraphLaunch(executable, stream) == 0);
    CHECK(cudaGraphDestroy(graph) == 0 && cudaGraphExecDestroy(executable) == 0 && cudaStreamDestroy(stream) == 0);
}

static void impossible_launches_are_refused(void) {
    CHECK(cuLaunchKernel(kernel, 1, 1, 1, 2048, 1, 1, 0, NULL, NULL, NULL) == 9);
    CHECK(cuLaunchKernel(kernel, 0, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == 9);
    CHECK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 1 << 20, NULL, NULL, NULL) == 1);
    cudaGetLastError();
}

struct Parameters { long count; float *written; char rest[496]; };

static void what_an_extensions_kernel_may_write_is_forgotten(void) {
    void *scale, *fill, *address;
    /* void scale<float>(float const*, float*, int) */
    CHECK(cuModuleGetFunction(&scale, NULL, "_Z5scaleIfEvPKT_PS0_i") == 0);
    CHECK(cuModuleGetFunction(&fill, NULL, "_Z4fill10Parameters") == 0);    /* fill(Parameters) */
    CHECK(cudaMalloc(&address, 4096) == 0);
    uintptr_t read = (uintptr_t)address, written = read + 1024, inside = read + 2048;
    foretell_know(read, 512), foretell_know(written, 512), foretell_know(inside, 512);
    int count = 4;
    void *arguments[] = {&read, &written, &count};
    CHECK(cuLaunchKernel(scale, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL) == 0);
    CHECK(foretell_is_known(read, 512) && !foretell_is_known(written, 4) && foretell_is_known(inside, 512));
    struct Parameters parameters = {.count = count, .written = (float *)inside};
    void *structure[] = {&parameters};
    CHECK(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, NULL, structure, NULL) == 0);
    CHECK(foretell_is_known(read, 512) && !foretell_is_known(inside, 4));
    CHECK(cudaFree(address) == 0);
}

static void managed_memory_is_not_charged_and_takes_advice(void) {
    size_t before = free_bytes();
    void *managed, *device;
    CHECK(cudaMallocManaged(&managed, 3 * MIB, 1) == 0 && cudaMalloc(&device, MIB) == 0);
    CHECK(before - free_bytes() == 2 * MIB);
    memset(managed, 1, 3 * MIB); /* the host reaches it */
    CHECK(cudaMemPrefetchAsync(managed, MIB) == 0 && cudaMemAdvise(managed, MIB) == 0);
    CHECK(cudaMemPrefetchAsync(device, MIB) == 1);
    CHECK(cudaFree(managed) == 0 && cudaFree(device) == 0 && free_bytes() == before);
}

static void what_is_not_implemented_fails_with_its_name(void) {
    void *function;
    int status;
    CHECK(cudaStreamBeginCaptureToGraph() == 801);
    CHECK(foretell_unimplemented_count() == 1 &&
          !strcmp(foretell_unimplemented_name(0), "cudaStreamBeginCaptureToGraph"));
    CHECK(cuGetProcAddress_v2("cuMemGetAddressRange", &function, 12000, 0, &status) == 0 &&
          function == (void *)cuMemGetAddressRange_v2);
    CHECK(cuGetProcAddress_v2("cuNoSuchFunction", &function, 12000, 0, &status) == 500 && status == 1);
}

/* ---- two processes: the other one is this program again, which gets the handle and answers by its exit code ------ */

enum { READS = 1, WRITES, FORGETS, FREES };

static int other_process(const char *what, const char *handle_in_hex) {
    Handle handle;
    for (size_t i = 0; i < sizeof handle; i++)
        sscanf(handle_in_hex + 2 * i, "%2hhx", (unsigned char *)&handle.bytes[i]);
    size_t before = free_bytes();
    int *a, *again, values[4] = {0}, task = atoi(what);
    CHECK(cudaIpcOpenMemHandle((void **)&a, handle, 1) == 0 && cudaIpcOpenMemHandle((void **)&again, handle, 1) == 0 &&
          a == again);
    CHECK(free_bytes() == before); /* the owner has paid */
    CHECK(cudaFree(a) == 1); /* closed, not freed */
    /* the fourth is unknown to the owner */
    CHECK(foretell_is_known((uintptr_t)a, 12) && !foretell_is_known((uintptr_t)a, 16));
    CHECK(cudaMemcpy(values, a, sizeof values, 2) == 0 && values[0] == 1 && values[2] == 3 && values[3] == 0);
    launch(1);
    CHECK(foretell_is_known((uintptr_t)a, 12));
    if (task == WRITES) {
        /* not before the host confirms it */
        CHECK(cudaMemcpy(a, (int[]){9}, 4, 1) == 0 && !foretell_is_known((uintptr_t)a, 4));
        foretell_know((uintptr_t)a, 4);
    }
    if (task == FORGETS) foretell_forget((uintptr_t)a + 4, 4);
    if (task == FREES) foretell_abandon((uintptr_t)a, 12); /* its tensor died here; the owner's did not */
    CHECK(cudaIpcCloseMemHandle(a) == 0 && foretell_is_known((uintptr_t)a, 4)); /* opened twice, so still open */
    CHECK(cudaIpcCloseMemHandle(a) == 0 && !foretell_is_known((uintptr_t)a, 4) && cudaIpcCloseMemHandle(a) == 1);
    return num_failures != 0;
}

static const char *program; /* /proc/self/exe would be valgrind */

static void in_another_process(int task, const Handle *handle) {
    char what[8], hex[2 * sizeof *handle + 1];
    snprintf(what, sizeof what, "%d", task);
    for (size_t i = 0; i < sizeof *handle; i++) snprintf(hex + 2 * i, 3, "%02x", (unsigned char)handle->bytes[i]);
    pid_t child = fork();
    if (child == 0) {
        execl(program, "other", what, hex, (char *)NULL);
        _exit(99);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void another_process_maps_the_memory_and_what_is_known_of_it(void) {
    int *a, values[4] = {1, 2, 3, 4}, back[4] = {0};
    void *mine, *event;
    Handle handle;
    CHECK(cudaMalloc((void **)&a, 4 * MIB) == 0 && cudaMemcpy(a, values, sizeof values, 1) == 0);
    foretell_know((uintptr_t)a, 12);
    CHECK(cudaIpcGetMemHandle(&handle, a) == 0 && cudaIpcOpenMemHandle(&mine, handle, 1) == 201); /* not one's own */
    in_another_process(READS, &handle);
    in_another_process(FREES, &handle);
    CHECK(foretell_is_known((uintptr_t)a, 12));
    in_another_process(WRITES, &handle);
    CHECK(cudaMemcpy(back, a, sizeof back, 2) == 0 && back[0] == 9 && back[1] == 2);
    CHECK(cudaMemcpy(a, values, sizeof values, 1) == 0);
    foretell_know((uintptr_t)a, 12);
    in_another_process(FORGETS, &handle);
    CHECK(foretell_is_known((uintptr_t)a, 4) && !foretell_is_known((uintptr_t)a + 4, 4) &&
          foretell_is_known((uintptr_t)a + 8, 4));
    foretell_know((uintptr_t)a, 12);
    foretell_abandon((uintptr_t)a, 12); /* the tensor died here, and the other process has it still */
    CHECK(!foretell_is_known((uintptr_t)a, 4));
    in_another_process(READS, &handle);
    foretell_publish((uintptr_t)a, 16); /* another tensor in the same block is sent: nothing is known of it */
    foretell_know((uintptr_t)a, 12);
    in_another_process(READS, &handle);
    CHECK(cudaFree(a) == 0);
    CHECK(cudaEventCreateWithFlags(&event, 0) == 0 && cudaIpcGetEventHandle(&handle, event) == 400 &&
          cudaEventDestroy(event) == 0);
    cudaGetLastError();
}

static void a_forked_child_writes_to_a_copy(void) {
    int *a, back = 0, status;
    CHECK(cudaMalloc((void **)&a, MIB) == 0 && cudaMemcpy(a, (int[]){1}, 4, 1) == 0);
    pid_t child = fork();
    if (child == 0) {
        int seen = 0;
        cudaMemcpy(&seen, a, 4, 2);
        cudaMemcpy(a, (int[]){2}, 4, 1);
        _exit(seen != 1 || cudaFree(a));
    }
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(cudaMemcpy(&back, a, 4, 2) == 0 && back == 1 && cudaFree(a) == 0);
}

void *allocate(size_t);

static void a_host_without_memory_ends_the_process_and_says_so(void) {
    int said[2], status;
    char text[256] = "";
    CHECK(pipe(said) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(said[1], 2);
        allocate((size_t)1 << 62);
        _exit(0);
    }
    close(said[1]);
    waitpid(child, &status, 0);
    FILE *stream = fdopen(said[0], "r");
    bool is_said = false;
    while (fgets(text, sizeof text, stream))
        is_said |= strstr(text, "the host has no 4611686018427387904 bytes left") != NULL;
    fclose(stream);
    CHECK(is_said && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void *churn(void *unused) {
    for (int i = 0; i < 200; i++) {
        void *a;
        if (cudaMalloc(&a, 2 * MIB) == 0) cudaFree(a);
    }
    return unused;
}

static void threads_and_forks_share_nothing_they_should_not(void) {
    size_t before = free_bytes();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, NULL);
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (child == 0) {
            void *a;
            _exit(cudaMalloc(&a, 2 * MIB) || cudaFree(a)); /* the lock is free in the child */
        }
        int status;
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK(free_bytes() == before);
}

enum { CUDNN_CONFIG = 3, CUDNN_PLAN = 5, CUDNN_INT64 = 3, CUDNN_DESCRIPTOR = 15, CUDNN_CHAR = 24 };
enum { CUDNN_PLAN_CONFIG = 401, CUDNN_PLAN_WORKSPACE = 402, CUDNN_PLAN_JSON = 405, CUDNN_ENGINE_INDEX = 1301 };

static void *cudnn_plan(int64_t engine) {
    void *config, *plan;
    CHECK(cudnnBackendCreateDescriptor(CUDNN_CONFIG, &config) == 0);
    CHECK(cudnnBackendSetAttribute(config, CUDNN_ENGINE_INDEX, CUDNN_INT64, 1, &engine) == 0);
    CHECK(cudnnBackendCreateDescriptor(CUDNN_PLAN, &plan) == 0);
    CHECK(cudnnBackendSetAttribute(plan, CUDNN_PLAN_CONFIG, CUDNN_DESCRIPTOR, 1, &config) == 0);
    CHECK(cudnnBackendFinalize(plan) == 0 && cudnnBackendDestroyDescriptor(config) == 0);
    return plan;
}

static int64_t cudnn_workspace(void *plan) {
    int64_t count = 0, bytes = -1;
    CHECK(cudnnBackendGetAttribute(plan, CUDNN_PLAN_WORKSPACE, CUDNN_INT64, 1, &count, &bytes) == 0 && count == 1);
    return bytes;
}

static void a_plan_that_would_compile_its_kernel_is_built_only_if_its_workspace_is_not_known(void) {
    void *fake = dlopen(FAKE_CUDNN, RTLD_NOW);
    int *num_built = fake ? dlsym(fake, "num_built") : NULL;
    CHECK(num_built);
    if (!num_built) return;
    void *compiled = cudnn_plan(0), *compiles = cudnn_plan(1), *tells_nothing = cudnn_plan(2);
    CHECK(*num_built == 2);
    CHECK(cudnn_workspace(compiled) == 8192 && cudnn_workspace(tells_nothing) == 8192);
    CHECK(cudnn_workspace(compiles) == 4096 && *num_built == 2);
    int64_t count, json; /* asked for anything else it is built after all */
    CHECK(cudnnBackendGetAttribute(compiles, CUDNN_PLAN_JSON, CUDNN_CHAR, 8, &count, &json) == 0 && *num_built == 3);
    CHECK(cudnn_workspace(compiles) == 8192);
    cudnnBackendDestroyDescriptor(compiled);
    cudnnBackendDestroyDescriptor(compiles);
    cudnnBackendDestroyDescriptor(tells_nothing);
}

static void visible_devices_are_obeyed(void) {
    int count = 0, device = -1;
    CHECK(cudaGetDeviceCount(&count) == 0 && count == 2); /* CUDA_VISIBLE_DEVICES=3,1 */
    CHECK(cudaSetDevice(2) == 101 && cudaSetDevice(1) == 0 && cudaGetDevice(&device) == 0 && device == 1);
    CHECK(free_bytes() == 100 * MIB && cudaSetDevice(0) == 0);
    cudaGetLastError();
}

#define RULE(name) do { \
    int before = num_failures; \
    name(); \
    printf("%s %s\n", num_failures == before ? "ok    " : "BROKEN", #name); \
} while (0)

int main(int count, char **arguments) {
    setenv("FORETELL_DEVICE", "name=Test;count=1;total=115343360;context=10485760;arena=4294967296;major=8;minor=6", 1);
    setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
    program = arguments[0];
    setvbuf(stdout, NULL, _IOLBF, 0); /* a forked child must not print what its parent has yet to print */
    void *module;
    cuModuleLoadData(&module, "");
    cuModuleGetFunction(&kernel, module, "a_kernel");
    if (count == 3) return other_process(arguments[1], arguments[2]);
    RULE(visible_devices_are_obeyed);
    RULE(malloc_takes_pages_of_2_mib_and_addresses_ascend);
    RULE(a_full_card_refuses_and_keeps_its_state);
    RULE(freeing_what_is_not_there_is_an_error);
    RULE(of_two_threads_that_free_the_same_memory_one_gets_an_error);
    RULE(small_copies_are_real_until_a_kernel_may_have_written);
    RULE(large_copies_are_real_only_when_marked);
    RULE(knowledge_is_kept_by_range);
    RULE(knowledge_is_read_and_written_byte_by_byte);
    RULE(a_copy_on_the_device_keeps_what_is_known);
    RULE(pools_hold_their_high_water_until_trimmed);
    RULE(virtual_memory_is_charged_when_created_and_freed_when_unmapped_and_released);
    RULE(pointers_say_what_they_are);
    RULE(another_process_maps_the_memory_and_what_is_known_of_it);
    RULE(a_forked_child_writes_to_a_copy);
    RULE(an_event_is_complete_after_a_synchronisation_or_1024_launches);
    RULE(questions_of_a_thread_that_launches_nothing_do_not_count);
    RULE(a_capture_becomes_a_graph);
    RULE(an_object_lives_as_long_as_the_last_graph_that_refers_to_it);
    RULE(impossible_launches_are_refused);
    RULE(what_an_extensions_kernel_may_write_is_forgotten);
    RULE(managed_memory_is_not_charged_and_takes_advice);
    RULE(what_is_not_implemented_fails_with_its_name);
    RULE(a_host_without_memory_ends_the_process_and_says_so);
    RULE(threads_and_forks_share_nothing_they_should_not);
    RULE(a_plan_that_would_compile_its_kernel_is_built_only_if_its_workspace_is_not_known);
    cuModuleUnload(module);
    printf("%d failures\n", num_failures);
    return num_failures != 0;
}
