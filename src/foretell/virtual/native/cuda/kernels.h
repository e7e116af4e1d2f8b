/* What kernels.c offers to the runtime and the driver. */
#ifndef FORETELL_KERNELS_H
#define FORETELL_KERNELS_H
#include "core/vgpu.h"

typedef struct Kernel Kernel;
typedef struct { unsigned x, y, z; } Dim3;

Kernel *kernel_of(const void *function);  /* a host stub or a handle; NULL: unknown */
Kernel *new_kernel(const char *name);     /* one that came from a module or library loaded at run time */
int launch_kernel(Kernel *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, void *stream);
int kernel_attribute(Kernel *kernel, int attribute, int *value); /* CUfunction_attribute */
int set_kernel_attribute(Kernel *kernel, int attribute, int value);
int resident_blocks(int block_threads, size_t shared);

/* arguments.c: a letter for each parameter of a C++ kernel, by its mangled name; none if the name does not say. */
char *parameter_kinds(const char *name);
void forget_written(const char *kinds, void **arguments);

#endif
