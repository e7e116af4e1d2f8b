/* cuDNN's CTC loss. Its descriptors are the real library's. The workspace is not documented: the forward and
 * backward variables of the algorithm, over time, samples and twice the labels, stand in. */
#include "core/vgpu.h"

#define INVALID 2000 /* CUDNN_STATUS_BAD_PARAM */

static __thread int max_labels; /* of the descriptor set last; torch sets one right before it asks */

EXPORT int cudnnSetCTCLossDescriptor_v9(void *descriptor, int type, int normalization, int gradients, int labels) {
    static int (*set)(void *, int, int, int, int);
    if (!set) set = (int (*)(void *, int, int, int, int))real_function("libcudnn.so.", "cudnnSetCTCLossDescriptor_v9");
    max_labels = labels;
    if (!set) return unimplemented("cudnnSetCTCLossDescriptor_v9", 3000);
    return set(descriptor, type, normalization, gradients, labels);
}

static int workspace(size_t *bytes, void *probabilities, const int *label_lengths) {
    NEEDS(bytes);
    typedef int (*Get)(void *, int, int *, int *, int *, int *);
    static Get get;
    if (!get) get = (Get)real_function("libcudnn.so.", "cudnnGetTensorNdDescriptor");
    int type, num_dimensions, shape[3], strides[3], labels = max_labels;
    if (!get || get(probabilities, 3, &type, &num_dimensions, shape, strides)) return INVALID;
    for (int i = 0; label_lengths && i < shape[1]; i++)
        if (i == 0 || label_lengths[i] > labels) labels = label_lengths[i];
    *bytes = 2 * sizeof(float) * (size_t)shape[0] * (size_t)shape[1] * (2 * (size_t)labels + 1);
    return 0;
}

EXPORT int cudnnGetCTCLossWorkspaceSize(void *handle UNUSED, void *probabilities, void *gradients UNUSED,
                                        const int *labels UNUSED, const int *label_lengths,
                                        const int *input_lengths UNUSED, int algorithm UNUSED, void *descriptor UNUSED,
                                        size_t *bytes) {
    return workspace(bytes, probabilities, label_lengths);
}
EXPORT int cudnnGetCTCLossWorkspaceSize_v8(void *handle UNUSED, int algorithm UNUSED, void *descriptor UNUSED,
                                           void *probabilities, void *gradients UNUSED, size_t *bytes) {
    return workspace(bytes, probabilities, NULL);
}

#define COMPUTES(name) EXPORT int name(void) { library_call(#name); return 0; }
COMPUTES(cudnnCTCLoss) COMPUTES(cudnnCTCLoss_v8)
