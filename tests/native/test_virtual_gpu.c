/* The virtual GPU's rules at the level of CUDA calls, without torch. Run under valgrind or with the address sanitizer (make native-test).
 * Prints a line a rule; the exit code says whether all held. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

int cudaGetDeviceCount(int *), cudaSetDevice(int), cudaGetDevice(int *), cudaMalloc(void **, size_t), cudaFree(void *),
    cudaMemGetInfo(size_t *, size_t *), cudaMemcpy(void *, const void *, size_t, int), cudaMemset(void *, int, size_t),
    cudaMallocAsync(void **, size_t, void *), cudaFreeAsync(void *, void *), cudaDeviceSynchronize(void), cudaGetLastError(void),
    cudaPeekAtLastError(void), cudaHostAlloc(void **, size_t, unsigned), cudaFreeHost(void *), cudaDeviceGetDefaultMemPool(void **, int),
    cudaMemPoolGetAttribute(void *, int, void *), cudaMemPoolTrimTo(void *, size_t), cudaEventCreateWithFlags(void **, unsigned),
    cudaEventRecord(void *, void *), cudaEventQuery(void *), cudaEventSynchronize(void *), cudaEventDestroy(void *),
    cudaEventElapsedTime(float *, void *, void *), cudaStreamCreateWithPriority(void **, unsigned, int), cudaStreamSynchronize(void *),
    cudaStreamDestroy(void *), cudaStreamBeginCapture(void *, int), cudaStreamEndCapture(void *, void **), cudaStreamIsCapturing(void *, int *),
    cudaGraphInstantiate(void **, void *, unsigned long long), cudaGraphLaunch(void *, void *), cudaGraphDestroy(void *),
    cudaGraphExecDestroy(void *), cudaGraphGetNodes(void *, void **, size_t *), cudaIpcGetMemHandle(void *, void *);
int cuMemAddressReserve(uintptr_t *, size_t, size_t, uintptr_t, unsigned long long), cuMemAddressFree(uintptr_t, size_t),
    cuMemCreate(uint64_t *, size_t, const void *, unsigned long long), cuMemRelease(uint64_t), cuMemUnmap(uintptr_t, size_t),
    cuMemMap(uintptr_t, size_t, size_t, uint64_t, unsigned long long), cuMemGetAddressRange_v2(uintptr_t *, size_t *, uintptr_t),
    cuGetProcAddress_v2(const char *, void **, int, unsigned long long, int *), cuModuleLoadData(void **, const void *), cuModuleUnload(void *),
    cuModuleGetFunction(void **, void *, const char *),
    cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
struct PointerAttributes { int type, device; void *device_pointer, *host_pointer; };
int cudaPointerGetAttributes(struct PointerAttributes *, const void *);
void foretell_know(uintptr_t, size_t), foretell_forget(uintptr_t, size_t), foretell_real_copies(int);
int foretell_is_known(uintptr_t, size_t), foretell_unimplemented_count(void);
const char *foretell_unimplemented_name(int);

static int num_failures;
#define CHECK(condition) do { if (!(condition)) { num_failures++; printf("  FAILED line %d: %s\n", __LINE__, #condition); } } while (0)

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
    CHECK(foretell_is_known(at, 20) && !foretell_is_known(at + 15, 10) && foretell_is_known(at + 30, 120));
    foretell_know(at + 10, 30);
    CHECK(foretell_is_known(at, 150));
    foretell_forget(0, 0x10000);
    CHECK(!foretell_is_known(at, 1));
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
    CHECK(cuMemCreate(&second, bytes, properties, 0) == 0 && cuMemMap(range, bytes, 0, second, 0) == 1); /* already mapped */
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
    CHECK(cudaPointerGetAttributes(&attributes, (char *)device + 1000) == 0 && attributes.type == 2 && attributes.device == 0);
    CHECK(cudaPointerGetAttributes(&attributes, host) == 0 && attributes.type == 1);
    CHECK(cudaPointerGetAttributes(&attributes, plain) == 0 && attributes.type == 0);
    CHECK(cudaFreeHost(host) == 0 && cudaFreeHost(host) == 1 && cudaFree(device) == 0);
    cudaGetLastError();
    free(plain);
}

static void an_event_is_complete_after_a_synchronisation_or_1024_launches(void) {
    void *event, *other, *stream;
    float milliseconds = 0;
    CHECK(cudaEventCreateWithFlags(&event, 0) == 0 && cudaEventCreateWithFlags(&other, 0) == 0 && cudaEventQuery(event) == 0);
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
    CHECK(cudaEventRecord(other, stream) == 0 && cudaEventElapsedTime(&milliseconds, event, other) == 0 && milliseconds > 0);
    int patience = 0;
    while (cudaEventQuery(other) == 600) patience++; /* a host that polls is not left waiting for ever */
    CHECK(patience > 0 && patience <= 64);
    CHECK(cudaEventDestroy(event) == 0 && cudaEventDestroy(other) == 0 && cudaStreamDestroy(stream) == 0);
    cudaGetLastError();
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

static void what_is_not_implemented_fails_with_its_name(void) {
    void *a, *function;
    int status;
    char handle[64];
    CHECK(cudaMalloc(&a, MIB) == 0);
    CHECK(cudaIpcGetMemHandle(handle, a) == 801);
    CHECK(foretell_unimplemented_count() == 1 && !strcmp(foretell_unimplemented_name(0), "cudaIpcGetMemHandle"));
    CHECK(cuGetProcAddress_v2("cuMemGetAddressRange", &function, 12000, 0, &status) == 0 && function == (void *)cuMemGetAddressRange_v2);
    CHECK(cuGetProcAddress_v2("cuNoSuchFunction", &function, 12000, 0, &status) == 500 && status == 1);
    CHECK(cudaFree(a) == 0);
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

static void visible_devices_are_obeyed(void) {
    int count = 0, device = -1;
    CHECK(cudaGetDeviceCount(&count) == 0 && count == 2); /* CUDA_VISIBLE_DEVICES=3,1 */
    CHECK(cudaSetDevice(2) == 101 && cudaSetDevice(1) == 0 && cudaGetDevice(&device) == 0 && device == 1);
    CHECK(free_bytes() == 100 * MIB && cudaSetDevice(0) == 0);
    cudaGetLastError();
}

#define RULE(name) do { int before = num_failures; name(); printf("%s %s\n", num_failures == before ? "ok    " : "BROKEN", #name); } while (0)

int main(void) {
    setenv("FORETELL_DEVICE", "name=Test;count=1;total=115343360;context=10485760;arena=4294967296;major=8;minor=6", 1);
    setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
    void *module;
    cuModuleLoadData(&module, "");
    cuModuleGetFunction(&kernel, module, "a_kernel");
    RULE(visible_devices_are_obeyed);
    RULE(malloc_takes_pages_of_2_mib_and_addresses_ascend);
    RULE(a_full_card_refuses_and_keeps_its_state);
    RULE(freeing_what_is_not_there_is_an_error);
    RULE(small_copies_are_real_until_a_kernel_may_have_written);
    RULE(large_copies_are_real_only_when_marked);
    RULE(knowledge_is_kept_by_range);
    RULE(pools_hold_their_high_water_until_trimmed);
    RULE(virtual_memory_is_charged_when_created_and_freed_when_unmapped_and_released);
    RULE(pointers_say_what_they_are);
    RULE(an_event_is_complete_after_a_synchronisation_or_1024_launches);
    RULE(a_capture_becomes_a_graph);
    RULE(impossible_launches_are_refused);
    RULE(what_is_not_implemented_fails_with_its_name);
    RULE(threads_and_forks_share_nothing_they_should_not);
    cuModuleUnload(module);
    printf("%d failures\n", num_failures);
    return num_failures != 0;
}
