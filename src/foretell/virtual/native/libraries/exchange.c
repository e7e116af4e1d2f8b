/* What the ranks of a job tell each other. Each appends to files of its own in the capture folder, which only grow:
 * ranks/<communicator>-<from>[-<to>]. Nothing has to be connected, a rank that ends leaves what it said, and one that
 * starts later reads it. A shared page, ranks/board, says what each rank is doing, and wakes those that wait. */
#include "libraries/exchange.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANKS 65536
#define LOOK_MILLISECONDS 50  /* how often a rank that waits looks whether the others are alive */
#define STUCK_LOOKS 60        /* so often nothing has changed, while all wait: for ever */
#define AGREE_LOOKS 10        /* the same, where a rank waits only to agree with the others */
#define MAX_QUESTIONS 8

enum Presence { DOES_NOT_RUN, RUNS_FROM_THE_START, RUNS_ON_DEMAND };
enum State { NOT_STARTED, RUNS, WAITS, HAS_ENDED, WAS_CUT_SHORT, HAS_FAILED };
typedef struct {
    int32_t pid, state;
    int32_t waits_for;        /* a rank; -1: one that has not made the communicator yet */
    uint32_t num_changes;     /* of the state */
    int32_t presence;         /* counts if only some ranks run */
    int32_t is_asleep;        /* elsewhere than in a wait of ours, for the others: in `asleep_in` */
    char what[40];
    char asleep_in[40], where[80];
} Slot;
typedef struct {
    uint32_t bell;            /* rung, a futex, whenever anything changes */
    int32_t world_size;
    int32_t is_partial;       /* only some ranks run */
    int32_t are_roles_wanted; /* neighbours in a pipeline are started, too */
    Slot slots[MAX_RANKS];
} Board;

static Board *board;
static int own_rank = -1, own_pid;
static int num_waiting; /* threads of this process */
static __thread char trouble[2048];

const char *last_trouble(void) { return trouble; }
bool waits_for_ranks(void) { return __atomic_load_n(&num_waiting, __ATOMIC_RELAXED) > 0; }

static bool path_in_ranks(char *path, const char *name) {
    const char *folder = log_folder();
    return folder && snprintf(path, PATH_MAX, "%s/ranks/%s", folder, name) < PATH_MAX;
}

/* ---- the board --------------------------------------------------------------------------------------------------- */

static pthread_mutex_t board_mutex = PTHREAD_MUTEX_INITIALIZER;

static Board *open_board(void) {
    char path[PATH_MAX];
    pthread_mutex_lock(&board_mutex);
    if (!board && path_in_ranks(path, "")) {
        mkdir(path, 0700);
        path_in_ranks(path, "board");
        int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file >= 0 && !ftruncate(file, sizeof *board)) {
            void *mapped = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (mapped != MAP_FAILED) board = mapped;
        }
        if (file >= 0) close(file);
    }
    pthread_mutex_unlock(&board_mutex);
    return board;
}

bool can_exchange(void) { return open_board() != NULL; }

static void ring(void) {
    __atomic_add_fetch(&board->bell, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &board->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* A forked child is another process, and no rank until it says so. */
static Slot *own_slot(void) { return own_rank >= 0 && own_pid == getpid() ? &board->slots[own_rank] : NULL; }

static void now_is(enum State state) {
    Slot *slot = own_slot();
    if (!slot) return;
    __atomic_store_n(&slot->state, state, __ATOMIC_RELEASE);
    __atomic_add_fetch(&slot->num_changes, 1, __ATOMIC_RELEASE);
}

void foretell_join(int rank, int world_size) {
    if (rank < 0 || rank >= MAX_RANKS || !open_board()) return;
    own_rank = rank;
    own_pid = getpid();
    board->world_size = world_size;
    board->slots[rank].pid = own_pid;
    now_is(RUNS);
    ring();
}

void foretell_leave(int how) {
    if (!board || !own_slot()) return;
    now_is(how == TO_ITS_END ? HAS_ENDED : how == CUT_SHORT ? WAS_CUT_SHORT : HAS_FAILED);
    ring();
}

/* Also of a process that has been killed and whose parent has not noticed it yet. */
static bool is_alive(int pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return kill(pid, 0) == 0 || errno == EPERM;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    if (got <= 0) return false;
    text[got] = 0;
    const char *after = strrchr(text, ')');
    return !(after && (after[2] == 'Z' || after[2] == 'X'));
}

/* Before the ranks are started, by who starts them. */
void foretell_some_run(int world_size, const int32_t *ranks, int count, int are_roles_wanted) {
    if (!open_board()) return;
    board->are_roles_wanted = are_roles_wanted;
    board->world_size = world_size;
    board->is_partial = 1;
    for (int i = 0; i < count; i++) board->slots[ranks[i]].presence = RUNS_FROM_THE_START;
}

int foretell_run_on_demand(int rank) {
    if (!open_board() || rank < 0 || rank >= MAX_RANKS) return 0;
    int absent = DOES_NOT_RUN;
    __atomic_compare_exchange_n(&board->slots[rank].presence, &absent, RUNS_ON_DEMAND, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
    return absent == DOES_NOT_RUN;
}

/* A process has ended: perhaps before it said that it is a rank. */
void foretell_has_gone(int rank, int is_error) {
    if (!open_board()) return;
    int32_t state = NOT_STARTED;
    __atomic_compare_exchange_n(&board->slots[rank].state, &state, is_error ? HAS_FAILED : HAS_ENDED, false,
                                __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    ring();
}

bool do_some_not_run(void) { return open_board() && board->is_partial; }
int foretell_size_in_part(void) { return do_some_not_run() ? board->world_size : 0; }

static bool may_run(int rank) {
    return !board->is_partial || __atomic_load_n(&board->slots[rank].presence, __ATOMIC_ACQUIRE) != DOES_NOT_RUN;
}

/* Those that are started on demand do not count: when they are is left to chance, and the result must not be. */
bool runs_from_the_start(int rank) {
    bool is_on_board = open_board() && rank >= 0 && rank < MAX_RANKS;
    return !do_some_not_run() || (is_on_board && board->slots[rank].presence == RUNS_FROM_THE_START);
}

bool are_roles_wanted(void) { return do_some_not_run() && board->are_roles_wanted; }

int this_rank(void) { return own_rank; }

static int num_on_board(void) { return board->world_size < MAX_RANKS ? board->world_size : MAX_RANKS; }

/* The state of a rank, or HAS_FAILED if its process is gone. */
static enum State state_of(int rank) {
    Slot *slot = &board->slots[rank];
    enum State state = (enum State)__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
    bool is_gone = (state == RUNS || state == WAITS) && !is_alive(slot->pid);
    enum State now = (enum State)__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
    return is_gone && (now == RUNS || now == WAITS) ? HAS_FAILED : now;
}

/* Whether there is nobody to wait for any more: a rank has failed, which ends the whole job, or the one that is waited
 * for (-1: not known) has ended. */
static enum State lost(int peer) {
    bool do_others_live = false;
    for (int rank = 0; rank < num_on_board(); rank++) {
        if (rank == own_rank || !may_run(rank)) continue;
        enum State state = state_of(rank);
        do_others_live |= state == NOT_STARTED || state == RUNS || state == WAITS;
        if (state == HAS_FAILED || (rank == peer && (state == HAS_ENDED || state == WAS_CUT_SHORT))) {
            int32_t said = __atomic_load_n(&board->slots[rank].state, __ATOMIC_ACQUIRE);
            snprintf(trouble, sizeof trouble, "rank %d has %s", rank,
                     state != HAS_FAILED ? "ended"
                     : said == HAS_FAILED ? "failed"
                     : "been killed, perhaps because this machine ran out of RAM, or has called os._exit");
            return state;
        }
    }
    if (peer >= 0 || do_others_live || !board->world_size) return RUNS;
    snprintf(trouble, sizeof trouble, "all other ranks have ended");
    return HAS_ENDED;
}

/* Told by a thread that watches the others of this process: where in the script it waits, and, unless it waits here, in
 * which function (`what`) it sleeps until another rank does something. Both NULL: it does not wait any more. */
void foretell_stands(const char *what, const char *where) {
    Slot *slot = own_slot();
    if (!slot) return;
    if (what) snprintf(slot->asleep_in, sizeof slot->asleep_in, "%s", what);
    snprintf(slot->where, sizeof slot->where, "%s", where ? where : "");
    bool was_asleep = __atomic_exchange_n(&slot->is_asleep, what != NULL, __ATOMIC_ACQ_REL);
    if (was_asleep != (what != NULL)) __atomic_add_fetch(&slot->num_changes, 1, __ATOMIC_RELEASE);
}

/* A number for each wait of this process, or 0 if it does not wait here. */
uint32_t foretell_current_wait(void) {
    Slot *slot = own_slot();
    if (!slot || __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != WAITS) return 0;
    return __atomic_load_n(&slot->num_changes, __ATOMIC_ACQUIRE) + 1;
}

/* What it waits for here, for a sentence; empty: it does not wait. */
const char *foretell_own_wait(void) {
    static char text[160];
    Slot *slot = own_slot();
    text[0] = '\0';
    if (!slot || !foretell_current_wait() || slot->waits_for < 0) return text;
    const char *at = slot->where[0] ? " at " : "";
    snprintf(text, sizeof text, "rank %d waits in %.39s%s%.79s for rank %d", own_rank, slot->what, at, slot->where,
             slot->waits_for);
    return text;
}

__attribute__((format(printf, 2, 3))) static void add_trouble(size_t *at, const char *format, ...) {
    va_list values;
    va_start(values, format);
    if (*at < sizeof trouble) *at += (size_t)vsnprintf(trouble + *at, sizeof trouble - *at, format, values);
    va_end(values);
}

/* Whether all ranks that live wait, and which for which; `changes` sums up what has happened so far. */
static bool do_all_wait(uint64_t *changes) {
    size_t at = 0;
    *changes = 0;
    for (int rank = 0; rank < num_on_board(); rank++) {
        Slot *slot = &board->slots[rank];
        if (!may_run(rank)) continue;
        int state = __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
        bool is_asleep = state == RUNS && __atomic_load_n(&slot->is_asleep, __ATOMIC_ACQUIRE);
        *changes += __atomic_load_n(&slot->num_changes, __ATOMIC_ACQUIRE);
        if (state == NOT_STARTED || (state == RUNS && !is_asleep)) return false;
        if (state != WAITS && !is_asleep) continue;
        add_trouble(&at, "%srank %d in %.39s", at ? "; " : "ranks wait for each other for ever: ", rank,
                    is_asleep ? slot->asleep_in : slot->what);
        if (slot->where[0]) add_trouble(&at, " at %.79s", slot->where);
        if (is_asleep) continue;
        if (slot->waits_for < 0) add_trouble(&at, " for one that is not in it");
        else add_trouble(&at, " for rank %d", slot->waits_for);
    }
    return true;
}

/* For a thread that sees its process wait elsewhere: why it waits for ever, once it has asked so often and nothing has
 * changed in between; else NULL. */
const char *foretell_stuck(int patience) {
    static int looks;
    static uint64_t before;
    uint64_t changes;
    if (!board) return NULL;
    looks = do_all_wait(&changes) && changes == before ? looks + 1 : 0;
    before = changes;
    return looks >= patience ? trouble : NULL;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

typedef struct { uint64_t bytes, known; int64_t subject; } Header;

static bool message_path(char *path, uint64_t communicator, int from, int to) {
    char name[64];
    if (to == EVERYBODY) snprintf(name, sizeof name, "%016lx-%d", (unsigned long)communicator, from);
    else snprintf(name, sizeof name, "%016lx-%d-%d", (unsigned long)communicator, from, to);
    return path_in_ranks(path, name);
}

static bool cannot_tell(void) {
    snprintf(trouble, sizeof trouble, "foretell cannot write to its capture folder: %s", strerror(errno));
    return false;
}

bool tell(uint64_t communicator, int from, int to, int64_t subject, const void *data, size_t bytes, size_t known) {
    char path[PATH_MAX];
    if (!open_board()) return true; /* and so nobody listens */
    errno = EIO;
    if (!message_path(path, communicator, from, to)) return cannot_tell();
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return cannot_tell();
    Header header = {bytes, known, subject};
    size_t stored = known ? bytes : 0, all = sizeof header + stored;
    char *record = allocate(all);
    memcpy(record, &header, sizeof header);
    if (stored) memcpy(record + sizeof header, data, stored);
    size_t done = 0;
    for (ssize_t n = 0; done < all; done += n > 0 ? (size_t)n : 0)
        if ((n = write(file, record + done, all - done)) <= 0 && !(n < 0 && errno == EINTR)) break;
    bool is_told = done == all || cannot_tell();
    free(record);
    close(file);
    ring();
    return is_told;
}

/* False: it is not there yet, or only in part. */
static bool next_message(const char *path, Place *place, Message *message) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    Header header;
    bool is_there = pread(file, &header, sizeof header, place->offset) == sizeof header;
    size_t stored = is_there && header.known ? header.bytes : 0;
    char *data = NULL;
    if (stored) {
        data = allocate(stored);
        size_t done = 0;
        for (ssize_t n; done < stored; done += (size_t)n)
            if ((n = pread(file, data + done, stored - done, place->offset + (long)(sizeof header + done))) <= 0) break;
        is_there = done == stored;
    }
    close(file);
    if (!is_there) { free(data); return false; }
    place->offset += (long)(sizeof header + stored);
    *message = (Message){TOLD, data, header.bytes, header.known, header.subject};
    return true;
}

void introduce(uint64_t communicator, int rank) {
    Identity self = {.rank = own_rank, .pid = getpid(), .card = physical_index(current_device)};
    tell(communicator, rank, EVERYBODY, 0, &self, sizeof self, sizeof self);
}

bool identity_of(uint64_t communicator, int rank, Identity *identity) {
    char path[PATH_MAX];
    Message message;
    Place start = {0};
    if (!open_board() || !message_path(path, communicator, rank, EVERYBODY)) return false;
    if (!next_message(path, &start, &message)) return false;
    bool is_whole = message.known >= sizeof *identity;
    if (is_whole) memcpy(identity, message.data, sizeof *identity);
    free(message.data);
    return is_whole;
}

static Message hear_for(int patience, uint64_t communicator, int from, int to, int its_rank, Place *place,
                        const char *what) {
    char path[PATH_MAX];
    Message message = {.answer = FAILED};
    if (!open_board() || !message_path(path, communicator, from, to)) return message;
    if (to == EVERYBODY && !place->offset) place->offset = sizeof(Header) + sizeof(Identity);
    uint32_t bell = __atomic_load_n(&board->bell, __ATOMIC_ACQUIRE);
    if (next_message(path, place, &message)) return message;
    Slot *slot = own_slot();
    Identity peer = {.rank = its_rank};
    if (slot) {
        identity_of(communicator, from, &peer);
        slot->waits_for = peer.rank;
        snprintf(slot->what, sizeof slot->what, "%s", what);
    }
    now_is(WAITS);
    __atomic_add_fetch(&num_waiting, 1, __ATOMIC_RELAXED);
    uint64_t changes = 0, before = 0;
    for (int looks = 0;;) {
        struct timespec pause = {.tv_nsec = LOOK_MILLISECONDS * 1000000L};
        long woken = syscall(SYS_futex, &board->bell, FUTEX_WAIT, bell, &pause, NULL, 0);
        bool is_quiet = woken < 0 && errno == ETIMEDOUT;
        bell = __atomic_load_n(&board->bell, __ATOMIC_ACQUIRE);
        if (next_message(path, place, &message)) break;
        if (!is_quiet) continue;
        if (peer.rank < 0 && identity_of(communicator, from, &peer) && slot) slot->waits_for = peer.rank;
        enum State state = lost(peer.rank);
        if (state != RUNS) {
            if (next_message(path, place, &message)) break; /* what it said before it ended */
            message.answer = state == WAS_CUT_SHORT ? ABSENT : FAILED;
            break;
        }
        looks = do_all_wait(&changes) && changes == before ? looks + 1 : 0;
        before = changes;
        if (looks >= patience) break;
    }
    __atomic_add_fetch(&num_waiting, -1, __ATOMIC_RELAXED);
    now_is(RUNS);
    return message;
}

Message hear(uint64_t communicator, int from, int to, int its_rank, Place *place, const char *what) {
    return hear_for(STUCK_LOOKS, communicator, from, to, its_rank, place, what);
}

/* For what the Python side waits for: 1, if nobody is left who could bring it. */
int foretell_wait(const char *what) {
    static __thread int looks;
    static __thread uint64_t before;
    Slot *slot = own_slot();
    if (!board || !slot) return 0;
    if (!what) { looks = 0; now_is(RUNS); return 0; }
    if (!looks && slot->state != WAITS) {
        slot->waits_for = -1;
        snprintf(slot->what, sizeof slot->what, "%s", what);
        now_is(WAITS);
    }
    uint32_t bell = __atomic_load_n(&board->bell, __ATOMIC_ACQUIRE);
    struct timespec pause = {.tv_nsec = LOOK_MILLISECONDS * 1000000L};
    uint64_t changes;
    if (syscall(SYS_futex, &board->bell, FUTEX_WAIT, bell, &pause, NULL, 0) == 0) return 0;
    looks = do_all_wait(&changes) && changes == before ? looks + 1 : 0;
    before = changes;
    return looks >= STUCK_LOOKS || lost(-1) != RUNS;
}

/* ---- what foretell itself asks ----------------------------------------------------------------------------------- */

/* Ranks must stop training after the same step, or their collectives do not match any more. Each answers a question
 * each time; one that says yes waits for the answers of the others. If they do not come, because other ranks do not ask
 * at all, it decides alone from then on. */
int foretell_agree(uint64_t what, int answer) {
    static struct {
        uint64_t what;
        bool is_alone, has_begun;
        int num_asked, *num_heard;
        Place *heard;
    } questions[MAX_QUESTIONS];
    if (!board || !own_slot()) return answer;
    int n = 0, size = num_on_board();
    while (n < MAX_QUESTIONS && questions[n].has_begun && questions[n].what != what) n++;
    if (n == MAX_QUESTIONS || questions[n].is_alone) return answer;
    if (!questions[n].has_begun) {
        questions[n].what = what;
        questions[n].has_begun = true;
        questions[n].heard = allocate(MAX_RANKS * sizeof(Place)); /* the next process group may have more ranks */
        questions[n].num_heard = allocate(MAX_RANKS * sizeof(int));
        introduce(what, own_rank);
    }
    int32_t own = answer;
    tell(what, own_rank, EVERYBODY, 0, &own, sizeof own, sizeof own);
    questions[n].num_asked++;
    for (int rank = 0; rank < size && answer; rank++) {
        if (!runs_from_the_start(rank)) continue;
        while (rank != own_rank && questions[n].num_heard[rank] < questions[n].num_asked) {
            Place *heard = &questions[n].heard[rank];
            Message message = hear_for(AGREE_LOOKS, what, rank, EVERYBODY, rank, heard,
                                       "the end of training");
            if (message.answer != TOLD) {
                questions[n].is_alone = message.answer == FAILED;
                return answer;
            }
            bool is_current = ++questions[n].num_heard[rank] == questions[n].num_asked;
            int32_t its = 1;
            if (message.known >= sizeof its) memcpy(&its, message.data, sizeof its);
            free(message.data);
            if (is_current) answer &= its != 0;
        }
    }
    return answer;
}
