/* Between known.c, what this process knows of device memory, and ipc.c, what processes that share it know. Call with
 * the lock held. */
#ifndef FORETELL_KNOWN_H
#define FORETELL_KNOWN_H
#include "core/vgpu.h"

enum Sharing { NOT_SHARED, EXPORTED, IMPORTED };
enum Sharing sharing_locked(uintptr_t address, uintptr_t *border); /* border: where this answer ends */
size_t bit_run_locked(uintptr_t address, size_t bytes, bool *is_on);
void set_known_bits_locked(uintptr_t address, size_t bytes, bool is_on); /* where the range is shared */
void publish_locked(uintptr_t address, size_t bytes);

#endif
