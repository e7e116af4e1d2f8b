/* What the ranks of a job tell each other, and who waits for whom. */
#ifndef FORETELL_EXCHANGE_H
#define FORETELL_EXCHANGE_H

#include "core/vgpu.h"

#define EVERYBODY (-1)

/* Where one rank has got to in what another has told. */
typedef struct { long offset; } Place;

enum Answer {
    TOLD,     /* by the peer: `data`, of which the first `known` bytes are known */
    ABSENT,   /* it will say no more, because foretell has ended it early: it may be taken to do as we do */
    FAILED,   /* it has ended, or all wait for each other: see last_trouble() */
};
/* data: to be freed */
typedef struct { enum Answer answer; char *data; size_t bytes, known; int64_t subject; } Message;

bool can_exchange(void);
/* The process behind a rank of a communicator: its rank in the job (-1: not told), and its card in the machine. Every
 * rank introduces itself before it says anything else. */
typedef struct { int32_t rank, pid, card, unused; } Identity;
void introduce(uint64_t communicator, int rank);
bool identity_of(uint64_t communicator, int rank, Identity *identity); /* false: it is not there yet */
/* `to`: a rank of the communicator, or EVERYBODY; `subject`: a number that the others get with it. False: it could not
 * be written, and the others must not wait for it: see last_trouble(). */
bool tell(uint64_t communicator, int from, int to, int64_t subject, const void *data, size_t bytes, size_t known);
/* Waits for the next message. `its_rank`: in the job (-1: not known). `what`: for whoever wonders what this rank is
 * doing. */
Message hear(uint64_t communicator, int from, int to, int its_rank, Place *place, const char *what);
const char *last_trouble(void);
bool waits_for_ranks(void); /* a thread of this process */

/* Of a job of which only some ranks run. */
bool do_some_not_run(void);
bool runs_from_the_start(int rank);
bool are_roles_wanted(void);
int this_rank(void);
EXPORT void foretell_some_run(int world_size, const int32_t *ranks, int count, int are_roles_wanted);
EXPORT int foretell_size_in_part(void); /* of the job; 0: all ranks run */
EXPORT int foretell_run_on_demand(int rank); /* 0: it runs already */
EXPORT void foretell_has_gone(int rank, int is_error);
EXPORT int foretell_wait(const char *what);

/* Told by the Python side: that this process is a rank, and how it ends. */
EXPORT void foretell_join(int rank, int world_size);
enum HowItEnds { TO_ITS_END, CUT_SHORT, BY_AN_EXCEPTION };
EXPORT void foretell_leave(int how);
EXPORT void foretell_stands(const char *what, const char *where);
EXPORT uint32_t foretell_current_wait(void);
EXPORT const char *foretell_own_wait(void);
EXPORT const char *foretell_stuck(int patience);
/* Whether all ranks say yes to their next question about `what`; those that say no do not wait for the others. */
EXPORT int foretell_agree(uint64_t what, int answer);

#endif
