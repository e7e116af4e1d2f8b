/* The card this process sees, from FORETELL_DEVICE ("key=value;key=value"), and CUDA_VISIBLE_DEVICES. */
#include "core/vgpu.h"
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Without FORETELL_DEVICE (somebody preloads the library by hand): an RTX 3060 with a 12 GB memory. */
static Card the_card = {
    .name = "NVIDIA GeForce RTX 3060", .count = 1, .total = 12622168064, .context = 0, .major = 8, .minor = 6,
    .sms = 28, .shared_per_block = 49152, .shared_per_block_optin = 101376, .shared_per_sm = 102400,
    .registers_per_sm = 65536, .threads_per_sm = 1536, .blocks_per_sm = 16, .l2 = 2359296, .bus_bits = 192,
    .clock_khz = 1777000, .memory_clock_khz = 7501000, .pci_device_id = 0x2504, .events_late = 1, .arena = 0,
};
static int physical[MAX_DEVICES], num_visible, num_physical;
static pthread_once_t card_once = PTHREAD_ONCE_INIT, visible_once = PTHREAD_ONCE_INIT;

static const struct { const char *key; size_t offset; } KEYS[] = {
#define KEY(field) { #field, offsetof(Card, field) }
    KEY(count), KEY(total), KEY(context), KEY(major), KEY(minor), KEY(sms), KEY(shared_per_block),
    KEY(shared_per_block_optin), KEY(shared_per_sm), KEY(registers_per_sm), KEY(threads_per_sm), KEY(blocks_per_sm),
    KEY(l2), KEY(bus_bits), KEY(clock_khz), KEY(memory_clock_khz), KEY(pci_device_id), KEY(cublas_library),
    KEY(cudnn_library), KEY(batch_norm_library), KEY(nccl_library), KEY(arena),
#undef KEY
};

static void set_key(const char *key, const char *value) {
    if (!strcmp(key, "name")) { snprintf(the_card.name, sizeof the_card.name, "%s", value); return; }
    if (!strcmp(key, "events")) { the_card.events_late = strcmp(value, "early") != 0; return; }
    if (!strcmp(key, "workspaces")) {
        the_card.workspaces = !strcmp(value, "none") ? WORKSPACES_NONE
            : !strcmp(value, "next") ? WORKSPACES_NEXT : WORKSPACES_ASKED;
        return;
    }
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
        if (!strcmp(key, KEYS[i].key)) {
            *(int64_t *)((char *)&the_card + KEYS[i].offset) = strtoll(value, NULL, 0);
            return;
        }
    fprintf(stderr, "foretell: unknown key '%s' in FORETELL_DEVICE\n", key);
}

static void read_card(void) {
    const char *text = getenv("FORETELL_DEVICE");
    if (!text) return;
    char *copy = copied(text), *rest = copy, *item;
    while ((item = strsep(&rest, ";"))) {
        char *equals = strchr(item, '=');
        if (!equals) continue;
        *equals = 0;
        set_key(item, equals + 1);
    }
    free(copy);
    /* a launcher inside the job tells each process how many there are on this machine */
    static const char *const LOCAL_SIZES[] = {
        "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"};
    for (size_t i = 0; i < sizeof LOCAL_SIZES / sizeof *LOCAL_SIZES; i++) {
        const char *size = getenv(LOCAL_SIZES[i]);
        if (size && atoll(size) > the_card.count) the_card.count = atoll(size);
    }
    if (the_card.count > MAX_DEVICES) the_card.count = MAX_DEVICES;
}

/* At once: a script may clear its environment. A process that waits to be forked has no card yet. */
__attribute__((constructor)) static void read_card_early(void) {
    if (getenv("FORETELL_DEVICE")) card();
}

const Card *card(void) {
    pthread_once(&card_once, read_card);
    return &the_card;
}

/* Each entry is an index or a UUID of ours (GPU-0000...-<index>); as in CUDA the list ends at the first invalid one.
 * A script that names card 3 has four cards where it usually runs, so the virtual machine has as many as are named. */
static void read_visible(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    num_physical = (int)card()->count;
    if (!text) {
        for (int i = 0; i < num_physical; i++) physical[num_visible++] = i;
        return;
    }
    while (*text) {
        while (isspace((unsigned char)*text)) text++;
        char *end;
        const char *number = strncmp(text, "GPU-", 4) ? text : text + 31;
        if (number != text && strlen(text) < 40) break;
        long index = strtol(number, &end, 10);
        if (end == number || index < 0 || index >= MAX_DEVICES || num_visible == MAX_DEVICES) break;
        for (int i = 0; i < num_visible; i++)
            if (physical[i] == index) { num_visible = 0; return; } /* a card named twice: CUDA shows none */
        physical[num_visible++] = (int)index;
        if (index >= num_physical) num_physical = (int)index + 1;
        while (isspace((unsigned char)*end)) end++;
        if (*end != ',') break;
        text = end + 1;
    }
}

int visible_device_count(void) {
    pthread_once(&visible_once, read_visible);
    return num_visible;
}

int physical_index(int device) {
    return device >= 0 && device < visible_device_count() ? physical[device] : -1;
}

int foretell_physical_device_count(void) {
    visible_device_count();
    return num_physical;
}

/* NVML counts the cards of the machine, CUDA those that are visible; -1: this process does not see that card. */
EXPORT int foretell_visible_index(int physical_device);
int foretell_visible_index(int physical_device) {
    for (int i = 0; i < visible_device_count(); i++)
        if (physical[i] == physical_device) return i;
    return -1;
}

/* For NVML and the tests. */
EXPORT int foretell_card(char *name, int name_bytes, int64_t *total, int64_t *context);
int foretell_card(char *name, int name_bytes, int64_t *total, int64_t *context) {
    snprintf(name, (size_t)name_bytes, "%s", card()->name);
    *total = card()->total;
    *context = card()->context;
    return 0;
}
