/* cuDNN's recurrent nets and dropout. The weights' layout and size follow from the documentation; the workspace and
 * the reserve space are not documented, so they are what the computation has to keep, and the result carries a
 * caveat (see foretell's reader of library calls: cudnnRNNForward). */
#include "core/vgpu.h"
#include <stdlib.h>
#include <string.h>

#define INVALID 2000 /* CUDNN_STATUS_BAD_PARAM */

enum { LSTM = CELL_LSTM, GRU = CELL_GRU }; /* cudnnRNNMode_t */
enum { NO_BIAS, SINGLE_INPUT_BIAS, DOUBLE_BIAS, SINGLE_RECURRENT_BIAS };

typedef struct { int mode, bias, directions, data_type, input, hidden, projection, layers; bool drops; } Rnn;
typedef struct { int data_type, steps, batch, vector; } Sequence;
typedef struct { float rate; } Dropout;

static int64_t type_bytes(int data_type) { return data_type == 1 ? 8 : data_type == 2 || data_type == 9 ? 2 : 4; }
static int gates(const Rnn *r) { return r->mode == LSTM ? 4 : r->mode == GRU ? 3 : 1; }
static int output(const Rnn *r) { return r->projection ? r->projection : r->hidden; } /* width of h */

EXPORT int cudnnCreateRNNDescriptor(void **d) { NEEDS(d); *d = allocate(sizeof(Rnn)); return 0; }
EXPORT int cudnnDestroyRNNDescriptor(void *d) { free(d); return 0; }
EXPORT int cudnnCreateRNNDataDescriptor(void **d) { NEEDS(d); *d = allocate(sizeof(Sequence)); return 0; }
EXPORT int cudnnDestroyRNNDataDescriptor(void *d) { free(d); return 0; }
EXPORT int cudnnCreateDropoutDescriptor(void **d) { NEEDS(d); *d = allocate(sizeof(Dropout)); return 0; }
EXPORT int cudnnDestroyDropoutDescriptor(void *d) { free(d); return 0; }

/* One random state for each thread the card can run at once. */
EXPORT int cudnnDropoutGetStatesSize(void *handle UNUSED, size_t *bytes) {
    NEEDS(bytes);
    *bytes = (size_t)(card()->sms * card()->threads_per_sm) * 16;
    return 0;
}
EXPORT int cudnnSetDropoutDescriptor(Dropout *d, void *handle UNUSED, float rate, void *states UNUSED,
                                     size_t bytes UNUSED, unsigned long long seed UNUSED) {
    NEEDS(d);
    d->rate = rate;
    library_call("cudnnSetDropoutDescriptor");
    return 0;
}
EXPORT int cudnnRestoreDropoutDescriptor(Dropout *d, void *handle UNUSED, float rate, void *states UNUSED,
                                         size_t bytes UNUSED, unsigned long long seed UNUSED) {
    NEEDS(d);
    d->rate = rate;
    return 0;
}

EXPORT int cudnnSetRNNDescriptor_v8(Rnn *r, int algorithm UNUSED, int mode, int bias, int direction,
                                    int input_mode UNUSED, int data_type, int precision UNUSED, int math UNUSED,
                                    int input, int hidden, int projection, int layers, Dropout *dropout,
                                    unsigned flags UNUSED) {
    NEEDS(r);
    *r = (Rnn){.mode = mode, .bias = bias, .directions = direction == 1 ? 2 : 1, .data_type = data_type, .input = input,
               .hidden = hidden, .projection = projection == hidden ? 0 : projection, .layers = layers,
               .drops = dropout && dropout->rate > 0};
    return 0;
}
EXPORT int cudnnSetRNNDataDescriptor(Sequence *s, int data_type, int layout UNUSED, int steps, int batch, int vector,
                                     const int *lengths UNUSED, void *fill UNUSED) {
    NEEDS(s);
    *s = (Sequence){data_type, steps, batch, vector};
    return 0;
}

/* ---- weights ---------------------------------------------------------------------------------------------------- */

/* For each layer and direction the input matrices of all gates, then the recurrent ones, then the projection; behind
 * all matrices the biases in the same order. */

static int64_t input_width(const Rnn *r, int pseudo_layer) {
    return pseudo_layer < r->directions ? r->input : (int64_t)output(r) * r->directions;
}
static int64_t matrix_elements(const Rnn *r, int pseudo_layer) {
    int64_t of_gates = (int64_t)gates(r) * r->hidden * (input_width(r, pseudo_layer) + output(r));
    return of_gates + (int64_t)r->projection * r->hidden;
}
static int64_t bias_elements(const Rnn *r) {
    return (int64_t)gates(r) * r->hidden * (r->bias == NO_BIAS ? 0 : r->bias == DOUBLE_BIAS ? 2 : 1);
}
static int64_t matrices_before(const Rnn *r, int pseudo_layer) {
    int64_t n = 0;
    for (int i = 0; i < pseudo_layer; i++) n += matrix_elements(r, i);
    return n;
}

EXPORT int cudnnGetRNNWeightSpaceSize(void *handle UNUSED, const Rnn *r, size_t *bytes) {
    NEEDS(r, bytes);
    int pseudo_layers = r->layers * r->directions;
    int64_t all = matrices_before(r, pseudo_layers) + pseudo_layers * bias_elements(r);
    *bytes = (size_t)(all * type_bytes(r->data_type));
    return 0;
}

/* Tensor descriptors are the real library's. */
static int describe(void *descriptor, int data_type, int rows, int columns) {
    typedef int (*Set)(void *, int, int, const int *, const int *);
    static Set set;
    if (!set) set = (Set)real_function("libcudnn.so.", "cudnnSetTensorNdDescriptor");
    return set ? set(descriptor, data_type, 3, (int[]){1, rows, columns}, (int[]){rows * columns, columns, 1}) : 3000;
}

EXPORT int cudnnGetRNNWeightParams(void *handle UNUSED, const Rnn *r, int pseudo_layer, size_t bytes UNUSED,
                                   const char *weights, int linear, void *matrix, void **matrix_address, void *bias,
                                   void **bias_address) {
    NEEDS(r);
    int g = gates(r), status = 0;
    int64_t size = type_bytes(r->data_type), in = input_width(r, pseudo_layer);
    if (matrix_address) *matrix_address = NULL;
    if (bias_address) *bias_address = NULL;
    if (linear < 0 || linear > 2 * g || (linear == 2 * g && !r->projection)) return INVALID;
    int64_t at = matrices_before(r, pseudo_layer);
    if (linear < g) at += linear * r->hidden * in;
    else if (linear < 2 * g) at += (int64_t)g * r->hidden * in + (int64_t)(linear - g) * r->hidden * output(r);
    else at += (int64_t)g * r->hidden * (in + output(r));
    if (matrix_address) *matrix_address = (void *)(weights + at * size);
    bool is_projection = linear == 2 * g;
    int rows = is_projection ? r->projection : r->hidden;
    int columns = is_projection ? r->hidden : linear < g ? (int)in : output(r);
    if (matrix) status = describe(matrix, r->data_type, rows, columns);
    bool has_bias = !is_projection && (r->bias == DOUBLE_BIAS || (r->bias == SINGLE_INPUT_BIAS && linear < g) ||
                                       (r->bias == SINGLE_RECURRENT_BIAS && linear >= g));
    if (!status && has_bias && bias) {
        int index = r->bias == SINGLE_RECURRENT_BIAS ? linear - g : linear;
        int64_t matrices = matrices_before(r, r->layers * r->directions);
        int64_t before = matrices + pseudo_layer * bias_elements(r) + (int64_t)index * r->hidden;
        if (bias_address) *bias_address = (void *)(weights + before * size);
        status = describe(bias, r->data_type, r->hidden, 1);
    }
    return status;
}

/* In widths of the hidden state, a step, sample, layer and direction. LSTM: four gates, cell and hidden state; GRU and
 * plain cells: what cuDNN 6 was seen to keep beside an LSTM of the same size (docs/cudnn.md). */
static int kept_widths(const Rnn *r) { return r->mode == LSTM ? 6 : r->mode == GRU ? 7 : 2; }

/* Kept from forward to backward: those, and with dropout the dropped input of the next layer. Workspace: the gates'
 * inputs of one layer for all steps, computed by one product. */
EXPORT int cudnnGetRNNTempSpaceSizes(void *handle UNUSED, const Rnn *r, int forward_mode, const Sequence *s,
                                     size_t *workspace, size_t *reserve) {
    NEEDS(r, s);
    int64_t size = type_bytes(r->data_type), samples = (int64_t)s->steps * s->batch;
    int64_t kept = (int64_t)kept_widths(r) * r->hidden + (r->projection ? r->projection : 0);
    int64_t dropped = r->drops ? (int64_t)(r->layers - 1) * output(r) * r->directions : 0;
    if (workspace) *workspace = (size_t)(samples * gates(r) * r->hidden * r->directions * size);
    int64_t for_backward = samples * (kept * r->layers * r->directions + dropped) * size;
    if (reserve) *reserve = forward_mode == 1 ? (size_t)for_backward : 0;
    return 0;
}

static int computes(const char *name, int64_t direction, const Rnn *r, const Sequence *x, size_t bytes,
                    const void *workspace) {
    NEEDS(r, x);
    workspace_given(workspace, (int64_t)bytes);
    count_launch();
    log_recurrent(name, (RecurrentRecord){
        .workspace_bytes = (int64_t)bytes, .num_steps = x->steps, .batch_size = x->batch, .input_size = r->input,
        .hidden_size = r->hidden, .device = current_device, .direction = direction, .cell = r->mode,
        .data_type = r->data_type, .num_layers = r->layers, .num_directions = r->directions});
    return 0;
}
typedef const void *P; /* whatever is of no interest */
EXPORT int cudnnRNNForward(P h UNUSED, const Rnn *rnn, int mode UNUSED, P lengths UNUSED, const Sequence *xd,
                           P x UNUSED, P yd UNUSED, P y UNUSED, P hd UNUSED, P hx UNUSED, P hy UNUSED, P cd UNUSED,
                           P cx UNUSED, P cy UNUSED, size_t weight_bytes UNUSED, P weights UNUSED, size_t bytes,
                           P workspace) {
    return computes("cudnnRNNForward", DIRECTION_FORWARD, rnn, xd, bytes, workspace);
}
EXPORT int cudnnRNNBackwardData_v8(P h UNUSED, const Rnn *rnn, P lengths UNUSED, P yd UNUSED, P y UNUSED, P dy UNUSED,
                                   const Sequence *xd, P dx UNUSED, P hd UNUSED, P hx UNUSED, P dhy UNUSED,
                                   P dhx UNUSED, P cd UNUSED, P cx UNUSED, P dcy UNUSED, P dcx UNUSED,
                                   size_t weight_bytes UNUSED, P weights UNUSED, size_t bytes, P workspace) {
    return computes("cudnnRNNBackwardData_v8", DIRECTION_DATA, rnn, xd, bytes, workspace);
}
EXPORT int cudnnRNNBackwardWeights_v8(P h UNUSED, const Rnn *rnn, int add UNUSED, P lengths UNUSED, const Sequence *xd,
                                      P x UNUSED, P hd UNUSED, P hx UNUSED, P yd UNUSED, P y UNUSED,
                                      size_t weight_bytes UNUSED, P weights UNUSED, size_t bytes, P workspace) {
    return computes("cudnnRNNBackwardWeights_v8", DIRECTION_WEIGHTS, rnn, xd, bytes, workspace);
}
