/* What the model of convolution workspaces and the log know of a convolution. */
#ifndef FORETELL_CONVOLUTION_H
#define FORETELL_CONVOLUTION_H

#include "core/vgpu.h"

enum { CONVOLUTION_FORWARD = 10, CONVOLUTION_WEIGHTS = 11, CONVOLUTION_DATA = 12 }; /* cuDNN's descriptor types */

typedef struct { int data_type, num_dimensions; int64_t dimensions[8]; } Shape;
typedef struct { int type; Shape x, y, w; } Operation;

int64_t element_bytes(int data_type);
int64_t elements(const Shape *shape, bool pads_channels);
/* Where cuDNN cannot be asked: as measured (foretell calibrate), else by rule. */
int64_t workspace_of(const Operation *operation);
bool has_measured_workspace(const Operation *operation);
/* Of the next engine that differs: one that copies all tensors once, else twice. */
int64_t next_workspace_of(const Operation *operation);
/* Of all engines that cudnn.benchmark tries. */
int64_t largest_workspace_of(const Operation *operation);

#endif
