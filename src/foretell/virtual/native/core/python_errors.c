/* For the CPU engine: a deleter of tensors that may be called while Python has an exception on its way. Python code
 * that runs then would lose the exception, so it is put aside first. Python's functions are those of the process, if
 * it is one of Python. */
#include "core/vgpu.h"
#include <dlfcn.h>

typedef void (*Callback)(void *);
static Callback callback;
static int (*ensure)(void);
static void (*release)(int), (*fetch)(void **, void **, void **), (*restore)(void *, void *, void *);

EXPORT void foretell_let_go(void *managed) {
    void *type, *value, *traceback;
    int state = ensure();
    fetch(&type, &value, &traceback);
    callback(managed);
    restore(type, value, traceback);
    release(state);
}

/* False: this is not a process of Python. */
EXPORT bool foretell_on_let_go(Callback function) {
    *(void **)&ensure = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    *(void **)&release = dlsym(RTLD_DEFAULT, "PyGILState_Release");
    *(void **)&fetch = dlsym(RTLD_DEFAULT, "PyErr_Fetch");
    *(void **)&restore = dlsym(RTLD_DEFAULT, "PyErr_Restore");
    callback = function;
    return ensure && release && fetch && restore;
}
