/* What streams.c offers to the launches and the driver. */
#ifndef FORETELL_STREAMS_H
#define FORETELL_STREAMS_H
#include "core/vgpu.h"

typedef struct Stream Stream;
typedef struct Event Event;
typedef struct Graph Graph;

Stream *stream_of(void *handle);          /* NULL, 1 and 2 are the default streams; NULL: not a stream */
int stream_device(const Stream *stream);
uint64_t stream_number(const Stream *stream);
#define EVENT_INTERPROCESS 4u
bool is_interprocess_event(void *handle);
/* Told by the Python side: the host waits until the threads that watch its work have seen it end (0: no more). */
EXPORT void foretell_drain(int is_wanted);
bool note_captured_work(Stream *stream);  /* true: the stream is capturing, the work became a node of its graph */
/* For the log; `stream`: NULL for the default one. */
void note_copy(void *to, const void *from, size_t bytes, Stream *stream, bool is_blocking, const char *function);
void note_memset(size_t bytes, Stream *stream, const char *function);

#endif
