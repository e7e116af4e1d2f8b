/* CUPTI as torch.profiler uses it: it may be switched on, and there is no GPU activity to report. Each use is
 * logged, so that the result can say that a profile made here shows the host only. */
#include "core/vgpu.h"

#define INVALID 1 /* CUPTI_ERROR_INVALID_PARAMETER */

EXPORT int cuptiGetVersion(unsigned *version) { NEEDS(version); *version = 24; return 0; }
EXPORT int cuptiGetResultString(int result, const char **text) {
    NEEDS(text);
    *text = result ? "not supported by foretell's virtual GPU" : "success";
    return 0;
}
EXPORT int cuptiSubscribe(void **subscriber, void *callback UNUSED, void *data UNUSED) {
    NEEDS(subscriber);
    static int one;
    *subscriber = &one;
    return 0;
}
EXPORT int cuptiActivityGetNextRecord(void *buffer UNUSED, size_t bytes UNUSED, void **record) {
    NEEDS(record);
    *record = NULL;
    return 12; /* CUPTI_ERROR_MAX_LIMIT_REACHED: no more records */
}
EXPORT int cuptiActivityGetNumDroppedRecords(void *context UNUSED, unsigned stream UNUSED, size_t *dropped) {
    NEEDS(dropped);
    *dropped = 0;
    return 0;
}
EXPORT int cuptiGetCallbackName(int domain UNUSED, unsigned id UNUSED, const char **name) {
    NEEDS(name);
    *name = "unknown";
    return 0;
}
/* Before and after each operator (torch 2.6 does it also where only the host is recorded): no use worth a record. */
EXPORT int cuptiActivityPushExternalCorrelationId(int kind UNUSED, uint64_t id UNUSED) { return 0; }
EXPORT int cuptiActivityPopExternalCorrelationId(int kind UNUSED, uint64_t *last) { if (last) *last = 0; return 0; }
EXPORT int cuptiActivitySetAttribute(int attribute UNUSED, size_t *bytes UNUSED, void *value UNUSED) { return 0; }

#define SWITCH(name) \
    EXPORT int name(void) { log_library_call(#name, (LibraryCallRecord){.device = current_device}); return 0; }
SWITCH(cuptiActivityEnable) SWITCH(cuptiActivityDisable) SWITCH(cuptiActivityFlushAll)
SWITCH(cuptiActivityRegisterCallbacks) SWITCH(cuptiActivityRegisterTimestampCallback)
SWITCH(cuptiActivityEnableRuntimeApi)
SWITCH(cuptiActivityEnableDriverApi) SWITCH(cuptiActivityEnableCudaEventDeviceTimestamps) SWITCH(cuptiEnableCallback)
SWITCH(cuptiEnableDomain) SWITCH(cuptiFinalize) SWITCH(cuptiUnsubscribe)
