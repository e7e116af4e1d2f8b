/* CUDA IPC: device memory of one process that others map. Each process's device memory is a file without a name
 * (memory/arena.c), so the other one maps the same pages: what one writes the other sees, and only the owner is
 * charged.
 *
 * What is known of it is shared as well, one bit a byte, behind the device memory in the same file. Only what the
 * host confirms counts there: a kernel of either process may overwrite what C alone has copied. The one that imports
 * goes by the bits. The owner goes by its own list as well, because PyTorch recycles its blocks: bytes of a tensor
 * that died are unknown to it at once, but stay as they are for others that still hold the tensor. foretell_publish,
 * called when a tensor is sent, brings the bits in line with the list. */
#include "memory/ranges.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cuda/streams.h"
#include "memory/known.h"

#define INVALID ERROR_INVALID_VALUE

#define TICKET_MAGIC 0x66747369u
#define ERROR_DEVICE_UNINITIALIZED 201

/* ---- which ranges are shared ------------------------------------------------------------------------------------- */

typedef struct { uintptr_t start, end; bool is_imported; int num_opened; Ticket ticket; } Shared;
static Shared *shared; /* few, in no order */
static int num_shared;
static size_t room;

/* Python asks: is there memory here that another process may have made known? */
EXPORT int foretell_num_shared(void) { return num_shared; }

static Shared *shared_at(uintptr_t start) {
    for (int i = 0; i < num_shared; i++)
        if (shared[i].start == start) return &shared[i];
    return NULL;
}

static void add_shared(Shared item) {
    shared = with_room(shared, sizeof *shared, (size_t)num_shared, &room);
    shared[num_shared++] = item;
}

enum Sharing sharing_locked(uintptr_t address, uintptr_t *border) {
    *border = UINTPTR_MAX;
    for (int i = 0; i < num_shared; i++) {
        if (shared[i].start <= address && address < shared[i].end) {
            *border = shared[i].end;
            return shared[i].is_imported ? IMPORTED : EXPORTED;
        }
        if (shared[i].start > address && shared[i].start < *border) *border = shared[i].start;
    }
    return NOT_SHARED;
}

/* ---- one bit a byte ---------------------------------------------------------------------------------------------- */

static bool bit(uintptr_t address) {
    size_t at = address - arena.start;
    return (unsigned char)arena.known_bits[at / 8] >> at % 8 & 1;
}

size_t bit_run_locked(uintptr_t address, size_t bytes, bool *is_on) {
    *is_on = bit(address);
    const char whole = *is_on ? (char)0xff : 0;
    size_t run = 1;
    while (run < bytes) {
        size_t at = address + run - arena.start;
        if (at % 8 == 0 && bytes - run >= 8 && arena.known_bits[at / 8] == whole) run += 8;
        else if (bit(address + run) == *is_on) run++;
        else break;
    }
    return run;
}

static void set_bit(size_t at, bool is_on) {
    char *byte = &arena.known_bits[at / 8];
    *byte = (char)((*byte & ~(1 << at % 8)) | is_on << at % 8);
}

static void set_bits(uintptr_t address, size_t bytes, bool is_on) {
    size_t at = address - arena.start, end = at + bytes;
    for (; at < end && at % 8; at++) set_bit(at, is_on);
    for (; end > at && end % 8; end--) set_bit(end - 1, is_on);
    char *from = arena.known_bits + at / 8, *to = arena.known_bits + end / 8;
    char *page = (char *)ROUND_UP((uintptr_t)from, PAGE), *last = (char *)((uintptr_t)to & ~(PAGE - 1));
    if (is_on || page >= last) { memset(from, is_on ? 0xff : 0, (size_t)(to - from)); return; }
    memset(from, 0, (size_t)(page - from));
    /* no pages for zeros */
    if (madvise(page, (size_t)(last - page), MADV_REMOVE)) memset(page, 0, (size_t)(last - page));
    memset(last, 0, (size_t)(to - last));
}

void set_known_bits_locked(uintptr_t address, size_t bytes, bool is_on) {
    for (int i = 0; i < num_shared; i++) {
        uintptr_t from = address > shared[i].start ? address : shared[i].start;
        uintptr_t to = address + bytes < shared[i].end ? address + bytes : shared[i].end;
        if (from < to) set_bits(from, to - from, is_on);
    }
}

/* ---- sharing and mapping ----------------------------------------------------------------------------------------- */

static uintptr_t bits_address(uintptr_t at) { return (uintptr_t)arena.known_bits + (at - arena.start) / 8; }

bool make_ticket_locked(Ticket *ticket, uintptr_t start, size_t bytes, int device) {
    struct stat file;
    if (arena.file < 0 || fstat(arena.file, &file)) return false;
    *ticket = (Ticket){
        .magic = TICKET_MAGIC, .pid = getpid(), .file = arena.file, .device = physical_index(device),
        .inode = file.st_ino, .offset = start - arena.map, .bits_offset = bits_address(start) - arena.map,
        .bytes = bytes};
    if (shared_at(start)) return true;
    add_shared((Shared){.start = start, .end = start + bytes, .ticket = *ticket});
    publish_locked(start, bytes);
    return true;
}

static int open_owner(const Ticket *ticket) {
    char path[64];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket->pid, ticket->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    /* that number is another file's now */
    if (file >= 0 && (fstat(file, &found) || found.st_ino != ticket->inode)) close(file), file = -1;
    return file;
}

static bool map_file(uintptr_t at, size_t bytes, int file, uint64_t offset) {
    int flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
    return mmap((void *)at, bytes, PROT_READ | PROT_WRITE, flags, file, (off_t)offset) != MAP_FAILED;
}

static void map_our_own(uintptr_t at, size_t bytes) {
    map_file(at, bytes, arena.file, at - arena.map);
    map_file(bits_address(at), bytes / 8, arena.file, bits_address(at) - arena.map);
}

bool map_ticket_locked(const Ticket *ticket, uintptr_t at) {
    int file = arena.file >= 0 ? open_owner(ticket) : -1;
    if (file < 0) return false;
    bool is_mapped = map_file(at, ticket->bytes, file, ticket->offset) &&
        map_file(bits_address(at), ticket->bytes / 8, file, ticket->bits_offset);
    close(file);
    Shared item = {.start = at, .end = at + ticket->bytes, .is_imported = true, .num_opened = 1, .ticket = *ticket};
    if (is_mapped) add_shared(item);
    else map_our_own(at, ticket->bytes);
    return is_mapped;
}

/* 0: it is not open. */
static uintptr_t opened_again_locked(const Ticket *ticket) {
    for (int i = 0; i < num_shared; i++)
        if (shared[i].is_imported && !memcmp(&shared[i].ticket, ticket, sizeof *ticket)) {
            shared[i].num_opened++;
            return shared[i].start;
        }
    return 0;
}

static bool closed_last_locked(uintptr_t start) {
    Shared *s = shared_at(start);
    return s && --s->num_opened == 0;
}

void unshare_locked(uintptr_t start, size_t bytes) {
    Shared *s = shared_at(start);
    if (!s) return;
    if (s->is_imported) map_our_own(start, bytes);
    else set_bits(start, bytes, false); /* those who still map it know nothing any more */
    *s = shared[--num_shared];
}

/* ---- whole allocations ------------------------------------------------------------------------------------------- */

static int exported_ticket(const void *address, Ticket *ticket) {
    lock();
    Range *range = find_range(&taken, (uintptr_t)address);
    bool is_valid = range && range->use == USE_MALLOC &&
        make_ticket_locked(ticket, range->start, range->bytes, range->device);
    unlock();
    return is_valid ? SUCCESS : ERROR_INVALID_VALUE;
}

/* As in CUDA, a handle that is open already is counted and has one address. Nothing is charged: its owner has paid. */
static int imported_open(void **address, const Ticket *ticket, int device) {
    int error = SUCCESS;
    lock();
    *address = (void *)opened_again_locked(ticket);
    if (!*address) {
        *address = take_addresses_locked(ticket->bytes, GRANULARITY, device, USE_IMPORTED, 0);
        if (!*address) error = ERROR_OUT_OF_MEMORY;
        else if (!map_ticket_locked(ticket, (uintptr_t)*address)) {
            give_back_locked(find_range(&taken, (uintptr_t)*address));
            error = ERROR_INVALID_HANDLE;
        }
    }
    unlock();
    return error;
}

static int imported_close(void *address) {
    lock();
    Range *range = find_range(&taken, (uintptr_t)address);
    bool is_valid = range && range->use == USE_IMPORTED && range->start == (uintptr_t)address;
    bool is_last = is_valid && closed_last_locked(range->start);
    size_t bytes = is_last ? range->bytes : 0;
    if (is_last) {
        unshare_locked(range->start, range->bytes);
        give_back_locked(range);
    }
    unlock();
    if (is_last) forget((uintptr_t)address, bytes);
    return is_valid ? SUCCESS : ERROR_INVALID_VALUE;
}

/* ---- handles of 64 bytes ----------------------------------------------------------------------------------------- */

_Static_assert(sizeof(Ticket) <= sizeof(IpcHandle), "a handle holds a ticket");
EXPORT int foretell_visible_index(int physical_device);

static bool read_ticket(Ticket *ticket, const void *bytes, int *device) {
    memcpy(ticket, bytes, sizeof *ticket);
    *device = ticket->magic == TICKET_MAGIC ? foretell_visible_index(ticket->device) : -1;
    return *device >= 0;
}

static int get_memory_handle(IpcHandle *handle, void *address) {
    NEEDS(handle);
    Ticket ticket;
    int error = exported_ticket(address, &ticket);
    memset(handle, 0, sizeof *handle);
    if (!error) memcpy(handle, &ticket, sizeof ticket);
    return error;
}

static int open_memory_handle(void **address, const IpcHandle *handle) {
    NEEDS(address);
    Ticket ticket;
    int device;
    if (!read_ticket(&ticket, handle, &device)) return ERROR_INVALID_HANDLE;
    /* CUDA: not one's own */
    return ticket.pid == getpid() ? ERROR_DEVICE_UNINITIALIZED : imported_open(address, &ticket, device);
}

EXPORT int cudaIpcGetMemHandle(IpcHandle *handle, void *address) { return fail(get_memory_handle(handle, address)); }
EXPORT int cudaIpcOpenMemHandle(void **address, IpcHandle handle, unsigned flags UNUSED) {
    return fail(open_memory_handle(address, &handle));
}
EXPORT int cudaIpcCloseMemHandle(void *address) { return fail(imported_close(address)); }
int cuIpcGetMemHandle(IpcHandle *handle, uintptr_t address) { return get_memory_handle(handle, (void *)address); }
int cuIpcOpenMemHandle_v2(uintptr_t *address, IpcHandle handle, unsigned flags UNUSED) {
    return open_memory_handle((void **)address, &handle);
}
int cuIpcCloseMemHandle(uintptr_t address) { return imported_close((void *)address); }

/* Work waits for work of another process on the GPU, not on the host: an opened event is one that is complete. */
extern int cudaEventCreateWithFlags(void **, unsigned);

EXPORT int cudaIpcGetEventHandle(IpcHandle *handle, void *event) {
    NEEDS(handle);
    if (!is_interprocess_event(event)) return fail(ERROR_INVALID_HANDLE);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &(uint32_t){TICKET_MAGIC}, sizeof(uint32_t));
    return SUCCESS;
}
EXPORT int cudaIpcOpenEventHandle(void **event, IpcHandle handle) {
    uint32_t magic;
    memcpy(&magic, &handle, sizeof magic);
    return magic == TICKET_MAGIC ? cudaEventCreateWithFlags(event, EVENT_INTERPROCESS) : fail(ERROR_INVALID_HANDLE);
}

/* ---- the driver's virtual memory (expandable segments): a file descriptor that holds the ticket ------------------ */

#define POSIX_FILE_DESCRIPTOR 1

int cuMemExportToShareableHandle(void *descriptor, uint64_t handle, int type, unsigned long long flags UNUSED) {
    NEEDS(descriptor);
    if (type != POSIX_FILE_DESCRIPTOR) return ERROR_NOT_SUPPORTED; /* as on a card without NVLink fabric */
    Ticket ticket;
    int error = physical_ticket(handle, &ticket);
    if (error) return error;
    int file = memfd_create("foretell-ticket", MFD_CLOEXEC);
    if (file < 0 || pwrite(file, &ticket, sizeof ticket, 0) != sizeof ticket) {
        if (file >= 0) close(file);
        return ERROR_OUT_OF_MEMORY;
    }
    *(int *)descriptor = file;
    return SUCCESS;
}

int cuMemImportFromShareableHandle(uint64_t *handle, void *descriptor, int type) {
    NEEDS(handle);
    if (type != POSIX_FILE_DESCRIPTOR) return ERROR_NOT_SUPPORTED;
    Ticket bytes, ticket;
    int device;
    if (pread((int)(intptr_t)descriptor, &bytes, sizeof bytes, 0) != sizeof bytes) return ERROR_INVALID_VALUE;
    return read_ticket(&ticket, &bytes, &device) ? physical_import(handle, &ticket, device) : ERROR_INVALID_VALUE;
}
