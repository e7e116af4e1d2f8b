/* Kernels: registered by every library that contains some, launched, never run. */
#include "cuda/kernels.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "cuda/streams.h"

#define INVALID fail(ERROR_INVALID_VALUE)

#define KERNEL_MAGIC 0x6b65726eu

/* A library's device code for several architectures. image is filled at the first launch; log is the number of the log
 * that knows the code. */
typedef struct { const unsigned char *data; int image; bool is_examined, is_of_torch; unsigned log; } FatBinary;

struct Kernel {
    uint32_t magic;
    int dynamic_shared;
    const char *name;
    const void *host;
    FatBinary *code;
    const char *parameters;
};

/* torch registers tens of thousands of kernels while it is loaded: an open-addressing table over the stubs'
 * addresses. */
static Kernel **table;
static size_t table_size, num_kernels;
static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;

static size_t slot_of(const void *host) {
    size_t slot = ((uintptr_t)host >> 4) * 0x9E3779B97F4A7C15u % table_size;
    while (table[slot] && table[slot]->host != host) slot = (slot + 1) % table_size;
    return slot;
}

static void insert(Kernel *kernel) {
    if (2 * (num_kernels + 1) > table_size) {
        Kernel **old = table;
        size_t old_size = table_size;
        table_size = table_size ? 2 * table_size : 1 << 16;
        table = allocate(table_size * sizeof *table);
        for (size_t i = 0; i < old_size; i++)
            if (old[i]) table[slot_of(old[i]->host)] = old[i];
        free(old);
    }
    size_t slot = slot_of(kernel->host);
    if (!table[slot]) num_kernels++;
    table[slot] = kernel;
}

Kernel *kernel_of(const void *function) {
    if (!function) return NULL;
    pthread_mutex_lock(&table_mutex);
    Kernel *kernel = table_size ? table[slot_of(function)] : NULL;
    pthread_mutex_unlock(&table_mutex);
    if (kernel) return kernel;
    const Kernel *handle = function;
    return (uintptr_t)function % 8 == 0 && handle->magic == KERNEL_MAGIC ? (Kernel *)function : NULL;
}

Kernel *new_kernel(const char *name) {
    Kernel *kernel = allocate(sizeof *kernel);
    *kernel = (Kernel){.magic = KERNEL_MAGIC, .name = copied(name)};
    return kernel;
}

/* ---- registration: called by the code nvcc puts into every library ----------------------------------------------- */

typedef struct { int magic, version; const void *data; void *filename; } FatBinaryWrapper;

EXPORT void **__cudaRegisterFatBinary(const FatBinaryWrapper *wrapper) {
    FatBinary *code = allocate(sizeof *code);
    code->data = wrapper->data;
    return (void **)code;
}
EXPORT void __cudaRegisterFatBinaryEnd(void **handle UNUSED) {}
/* Libraries unregister while the process exits; threads may still launch, so the record stays. */
EXPORT void __cudaUnregisterFatBinary(void **handle UNUSED) {}
EXPORT char __cudaInitModule(void **handle UNUSED) { return 1; }

EXPORT void __cudaRegisterFunction(void **handle, const void *host, char *device_function UNUSED, const char *name,
                                   int thread_limit UNUSED, void *tid UNUSED, void *bid UNUSED, void *block UNUSED,
                                   void *grid UNUSED, int *warp UNUSED) {
    Kernel *kernel = allocate(sizeof *kernel);
    *kernel = (Kernel){.magic = KERNEL_MAGIC, .name = name, .host = host, .code = (FatBinary *)handle};
    pthread_mutex_lock(&table_mutex);
    insert(kernel);
    pthread_mutex_unlock(&table_mutex);
}

typedef struct Variable { const void *host; size_t bytes; void *address; struct Variable *next; } Variable;
static Variable *variables;

EXPORT void __cudaRegisterVar(void **handle UNUSED, char *host, char *device_address UNUSED, const char *name UNUSED,
                              int is_extern UNUSED, size_t bytes, int is_constant UNUSED, int is_global UNUSED) {
    Variable *v = allocate(sizeof *v);
    pthread_mutex_lock(&table_mutex);
    *v = (Variable){host, bytes, NULL, variables};
    variables = v;
    pthread_mutex_unlock(&table_mutex);
}

/* A __device__ variable is part of the loaded code, which is not charged to the allocations; it needs an address
 * only. */
static Variable *variable_of(const void *symbol) {
    pthread_mutex_lock(&table_mutex);
    Variable *v = variables;
    while (v && v->host != symbol) v = v->next;
    if (v && !v->address) v->address = allocate(v->bytes ? v->bytes : 1);
    pthread_mutex_unlock(&table_mutex);
    return v;
}

EXPORT int cudaGetSymbolAddress(void **address, const void *symbol) {
    NEEDS(address);
    Variable *v = variable_of(symbol);
    if (!v) return fail(ERROR_INVALID_SYMBOL);
    *address = v->address;
    return SUCCESS;
}

EXPORT int cudaGetSymbolSize(size_t *bytes, const void *symbol) {
    NEEDS(bytes);
    Variable *v = variable_of(symbol);
    if (!v) return fail(ERROR_INVALID_SYMBOL);
    *bytes = v->bytes;
    return SUCCESS;
}

EXPORT int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, int kind UNUSED) {
    NEEDS(from);
    Variable *v = variable_of(symbol);
    if (!v || offset + bytes > v->bytes) return fail(v ? ERROR_INVALID_VALUE : ERROR_INVALID_SYMBOL);
    if (device_of(from) < 0) memcpy((char *)v->address + offset, from, bytes);
    return SUCCESS;
}
EXPORT int cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset, int kind,
                                   void *stream UNUSED) {
    return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}

/* ---- is there code for this card? -------------------------------------------------------------------------------- */

/* The container: magic 0xBA55ED50, u16 version, u16 header bytes, u64 size; then entries: u16 kind (1 PTX, 2 machine
 * code), u16, u32 header bytes, u64 payload bytes, ..., u32 architecture at offset 28. Machine code runs on the same
 * major version from its minor on; PTX is compiled for anything from its version on. */
static int find_image(const unsigned char *data) {
    uint32_t magic;
    memcpy(&magic, data, 4);
    int own = (int)(card()->major * 10 + card()->minor);
    if (magic != 0xBA55ED50u) return own; /* an unknown container: assume that it fits */
    uint16_t header;
    uint64_t size;
    memcpy(&header, data + 6, 2);
    memcpy(&size, data + 8, 8);
    int best = 0;
    for (const unsigned char *entry = data + header, *end = entry + size; entry + 32 <= end;) {
        uint16_t kind;
        uint32_t entry_header, architecture;
        uint64_t payload;
        memcpy(&kind, entry, 2);
        memcpy(&entry_header, entry + 4, 4);
        memcpy(&payload, entry + 8, 8);
        memcpy(&architecture, entry + 28, 4);
        int arch = (int)architecture;
        bool runs = kind == 2 ? arch / 10 == own / 10 && arch <= own : kind == 1 && arch <= own;
        if (runs && arch > best) best = arch;
        if (entry_header + payload == 0) break;
        entry += entry_header + payload;
    }
    return best;
}

static bool is_in_library(const void *address, const char *part_of_path) {
    Dl_info library;
    return dladdr(address, &library) && library.dli_fname && strstr(library.dli_fname, part_of_path);
}

static int image_of(const Kernel *kernel) {
    if (!kernel->code) return (int)(card()->major * 10 + card()->minor);
    if (!kernel->code->is_examined) {
        kernel->code->image = find_image(kernel->code->data);
        kernel->code->is_of_torch = is_in_library(kernel->host, "/libtorch");
        kernel->code->is_examined = true;
    }
    return kernel->code->image;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static void forget_what_it_writes(Kernel *kernel, void **arguments) {
    if (kernel->code && kernel->code->is_of_torch) return;
    if (!kernel->parameters) kernel->parameters = parameter_kinds(kernel->name);
    forget_written(kernel->parameters, arguments);
}

/* Registers are read from the file later, by those who want to know them: machine code is compressed. */
static void note_code(FatBinary *code) {
    if (!code || code->log == log_number()) return;
    code->log = log_number();
    Dl_info library;
    if (dladdr(code->data, &library) && library.dli_fname)
        log_code(library.dli_fname, (CodeRecord){.offset = code->data - (const unsigned char *)library.dli_fbase});
}

int launch_kernel(Kernel *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *stream) {
    Stream *s = stream_of(stream);
    if (!kernel || !s) return fail(ERROR_INVALID_HANDLE);
    if (!image_of(kernel)) return fail(ERROR_NO_KERNEL_IMAGE);
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!threads || threads > 1024 || block.z > 64 || !grid.x || !grid.y || !grid.z || grid.x > INT32_MAX ||
        grid.y > 65535 || grid.z > 65535)
        return fail(ERROR_INVALID_CONFIGURATION);
    if (shared > (size_t)card()->shared_per_block_optin) return fail(ERROR_INVALID_VALUE);
    forget_what_it_writes(kernel, arguments);
    if (!note_captured_work(s)) count_launch();
    note_code(kernel->code);
    log_launch(kernel->name, (LaunchRecord){
        .grid_x = grid.x, .grid_y = grid.y, .grid_z = grid.z,
        .block_x = block.x, .block_y = block.y, .block_z = block.z,
        .shared_bytes = (int64_t)shared, .device = stream_device(s), .stream = (int64_t)stream_number(s)});
    return SUCCESS;
}

EXPORT int cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared,
                            void *stream) {
    return launch_kernel(kernel_of(function), grid, block, arguments, shared, stream);
}
EXPORT int cudaLaunchCooperativeKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared,
                                       void *stream) {
    return launch_kernel(kernel_of(function), grid, block, arguments, shared, stream);
}

typedef struct {
    Dim3 grid, block;
    size_t shared;
    void *stream, *attributes;
    unsigned num_attributes;
} LaunchConfig;
EXPORT int cudaLaunchKernelExC(const LaunchConfig *config, const void *function, void **arguments) {
    NEEDS(config);
    return launch_kernel(kernel_of(function), config->grid, config->block, arguments, config->shared, config->stream);
}

/* CUDA 13's stubs look the kernel up once and launch by handle. */
EXPORT int __cudaGetKernel(void **kernel, const void *function) {
    NEEDS(kernel);
    *kernel = kernel_of(function);
    return *kernel ? SUCCESS : fail(ERROR_INVALID_HANDLE);
}
EXPORT int __cudaLaunchKernel(void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *stream) {
    return launch_kernel(kernel_of(kernel), grid, block, arguments, shared, stream);
}
EXPORT int __cudaLaunchKernel_ptsz(void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *stream) {
    return __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

/* `kernel<<<grid, block, shared, stream>>>(...)` pushes the configuration, and the stub pops it. */
static __thread struct { Dim3 grid, block; size_t shared; void *stream; } pushed[8];
static __thread int num_pushed;

EXPORT unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void *stream) {
    if (num_pushed == 8) return 1;
    pushed[num_pushed].grid = grid, pushed[num_pushed].block = block;
    pushed[num_pushed].shared = shared, pushed[num_pushed++].stream = stream;
    return 0;
}

EXPORT int __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void **stream) {
    NEEDS(grid, block, shared, stream);
    if (!num_pushed) return fail(ERROR_INVALID_CONFIGURATION);
    *grid = pushed[--num_pushed].grid, *block = pushed[num_pushed].block;
    *shared = pushed[num_pushed].shared, *stream = pushed[num_pushed].stream;
    return SUCCESS;
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

/* How many registers a kernel uses is in its machine code, which is not read here: 64 is typical of torch's, and
 * decides only how wide some reductions spread. */
#define TYPICAL_REGISTERS 64

/* CUfunction_attribute: 0 max threads, 1 static shared, 2 constant, 3 local, 4 registers, 5 PTX, 6 binary version, 8
 * dynamic shared limit. */
int kernel_attribute(Kernel *kernel, int attribute, int *value) {
    if (!value) return ERROR_INVALID_VALUE;
    if (!kernel) return ERROR_INVALID_HANDLE;
    int image = image_of(kernel);
    if (!image) return ERROR_NO_KERNEL_IMAGE;
    switch (attribute) {
    case 0: *value = 1024; break;
    case 4: *value = TYPICAL_REGISTERS; break;
    case 5: case 6: *value = image; break;
    case 8: *value = kernel->dynamic_shared ? kernel->dynamic_shared : (int)card()->shared_per_block; break;
    default: *value = 0;
    }
    return SUCCESS;
}

int set_kernel_attribute(Kernel *kernel, int attribute, int value) {
    if (!kernel) return ERROR_INVALID_HANDLE;
    if (attribute == 8) {
        if (value > card()->shared_per_block_optin) return ERROR_INVALID_VALUE;
        kernel->dynamic_shared = value;
    }
    return SUCCESS;
}

typedef struct {
    size_t shared, constant, local;
    int max_threads, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared, carveout;
} FunctionAttributes; /* cudaFuncAttributes up to the fields for clusters, which are left as the caller zeroed them */

EXPORT int cudaFuncGetAttributes(FunctionAttributes *attributes, const void *function) {
    NEEDS(attributes);
    Kernel *kernel = kernel_of(function);
    int image = kernel ? image_of(kernel) : 0;
    if (!image) return fail(kernel ? ERROR_NO_KERNEL_IMAGE : ERROR_INVALID_HANDLE);
    *attributes = (FunctionAttributes){
        .max_threads = 1024, .registers = TYPICAL_REGISTERS, .ptx_version = image, .binary_version = image};
    return kernel_attribute(kernel, 8, &attributes->max_dynamic_shared);
}

EXPORT int cudaFuncSetAttribute(const void *function, int attribute, int value) {
    return fail(set_kernel_attribute(kernel_of(function), attribute, value));
}
EXPORT int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device UNUSED) {
    return fail(set_kernel_attribute(kernel_of(kernel), attribute, value));
}

int resident_blocks(int block_threads, size_t shared) {
    if (block_threads <= 0 || block_threads > 1024) return 0;
    int64_t warps = (block_threads + 31) / 32;
    int64_t by_threads = card()->threads_per_sm / (32 * warps);
    int64_t by_registers = card()->registers_per_sm / (TYPICAL_REGISTERS * 32 * warps);
    size_t kept = card()->major >= 8 ? 1024 : 0; /* by the driver, a block */
    int64_t by_shared = shared ? card()->shared_per_sm / (int64_t)(shared + kept) : card()->blocks_per_sm;
    int64_t blocks = card()->blocks_per_sm;
    if (by_threads < blocks) blocks = by_threads;
    if (by_registers < blocks) blocks = by_registers > 0 ? by_registers : 1;
    if (by_shared < blocks) blocks = by_shared;
    return (int)blocks;
}

EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function UNUSED, int threads,
                                                                  size_t shared, unsigned flags UNUSED) {
    NEEDS(blocks);
    *blocks = resident_blocks(threads, shared);
    return SUCCESS;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                         size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

/* ---- code loaded at run time through the runtime (CUDA 12 and newer) --------------------------------------------- */

EXPORT int cudaLibraryLoadData(void **library, const void *code UNUSED, int *jit UNUSED, void **jit_values UNUSED,
                               unsigned num_jit UNUSED, int *options UNUSED, void **option_values UNUSED,
                               unsigned num_options UNUSED) {
    NEEDS(library);
    *library = allocate(16);
    return SUCCESS;
}
EXPORT int cudaLibraryLoadFromFile(void **library, const char *file UNUSED, int *jit UNUSED, void **jit_values UNUSED,
                                   unsigned num_jit UNUSED, int *options UNUSED, void **option_values UNUSED,
                                   unsigned num_options UNUSED) {
    NEEDS(library);
    *library = allocate(16);
    return SUCCESS;
}
EXPORT int cudaLibraryUnload(void *library) {
    free(library);
    return SUCCESS;
}
EXPORT int cudaLibraryGetKernel(void **kernel, void *library UNUSED, const char *name) {
    NEEDS(kernel, name);
    *kernel = new_kernel(name);
    return SUCCESS;
}
