/* How much memory cuDNN asks for to compute a convolution, where the installed one (before 9.8) cannot be asked. */
#include "libraries/convolution.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t element_bytes(int data_type) {
    switch (data_type) { /* cudnnDataType_t */
    case 1: case 6: return 8;                   /* double, int64 */
    case 2: case 9: return 2;                   /* half, bfloat16 */
    case 3: case 5: case 7: case 10: case 11: return 1;
    default: return 4;
    }
}

int64_t elements(const Shape *t, bool pads_channels) {
    int64_t n = t->num_dimensions ? 1 : 0;
    for (int i = 0; i < t->num_dimensions; i++)
        n *= pads_channels && i == 1 ? (t->dimensions[i] + 3) / 4 * 4 : t->dimensions[i];
    return n;
}

/* Fitted to fp32 runs on an A100 (sm80): tensor-core engines copy x, y and w into NHWC with channels padded to 4. On
 * other cards no rule was found that beats none. C and K: input and output channels. */
static int64_t ruled_workspace(const Operation *o) {
    if (card()->major != 8 || card()->minor != 0) return 0;
    if (o->x.num_dimensions != 4 || element_bytes(o->x.data_type) != 4) return 0;
    int64_t c = o->x.dimensions[1], k = o->y.dimensions[1], filter = o->w.dimensions[2] * o->w.dimensions[3];
    if (o->w.dimensions[1] != c || c <= 4 || filter == 1) return 0; /* grouped, first layer, 1x1 */
    int64_t weights = 4 * ((k + 3) / 4 * 4) * ((c + 3) / 4 * 4) * filter;
    int64_t copies = 4 * (elements(&o->x, true) + elements(&o->y, true)) + weights;
    int64_t low = c < k ? c : k, high = c < k ? k : c;
    if (o->type == CONVOLUTION_DATA) return high > 42 && k <= 128 ? 2 * copies : copies;
    if (low <= 40) return 0;
    int64_t tiles = ((c * filter + 127) / 128) * ((k + 127) / 128);
    /* partial sums, where few tiles are at work */
    return o->type == CONVOLUTION_WEIGHTS && tiles <= 432 ? copies + 3 * weights : copies;
}

/* ---- what was measured on a real card: FORETELL_WORKSPACES, made by `foretell run --profile` --------------------- */

enum { MAX_MEASURED = 4096 };

/* One line of the file: direction (a descriptor type), bytes of an element, then n, c, h, w of x, k, p, q of y, c
 * per group, r, s of w, and the workspace in bytes. */
typedef struct { int64_t type, element, n, c, h, w, k, p, q, group_channels, r, s, workspace; } Measured;
static Measured measured[MAX_MEASURED];
static int num_measured;
static pthread_once_t measured_once = PTHREAD_ONCE_INIT;

static void read_measured(void) {
    const char *path = getenv("FORETELL_WORKSPACES");
    FILE *file = path && *path ? fopen(path, "r") : NULL;
    if (path && *path && !file) fprintf(stderr, "foretell: the measured workspaces in %s cannot be read\n", path);
    if (!file) return;
    char line[512];
    while (num_measured < MAX_MEASURED && fgets(line, sizeof line, file)) {
        Measured *m = &measured[num_measured];
        int64_t *fields = (int64_t *)m;
        char *at = line, *end;
        size_t i = 0;
        for (; i < sizeof *m / sizeof *fields; i++, at = end) {
            fields[i] = strtoll(at, &end, 10);
            if (end == at) break;
        }
        if (i == sizeof *m / sizeof *fields) num_measured++;
        else fprintf(stderr, "foretell: not a line of measured workspaces: %s", line);
    }
    fclose(file);
}

static Measured described(const Operation *o) {
    const int64_t *x = o->x.dimensions, *y = o->y.dimensions, *w = o->w.dimensions;
    int64_t element = element_bytes(o->x.data_type);
    return (Measured){o->type, element, x[0], x[1], x[2], x[3], y[1], y[2], y[3], w[1], w[2], w[3], 0};
}

static double activation_bytes(const Measured *m) {
    return (double)(m->element * m->n * (m->c * m->h * m->w + m->k * m->p * m->q));
}

static bool differs_in_size_alone(const Measured *a, const Measured *b) {
    return a->type == b->type && a->element == b->element && a->c == b->c && a->k == b->k &&
        a->group_channels == b->group_channels && a->r == b->r && a->s == b->s;
}

/* The same convolution; or, from two that differ in batch and image alone, the line through both: engines that copy
 * their tensors ask for a multiple of x and y and one of w. From only one of those: in proportion. */
static bool measured_workspace(const Operation *o, int64_t *bytes) {
    pthread_once(&measured_once, read_measured);
    if (!num_measured || o->x.num_dimensions != 4) return false;
    Measured wanted = described(o);
    const Measured *near = NULL, *far = NULL; /* the nearest, and the one most different from it */
    double size = activation_bytes(&wanted);
    for (const Measured *m = measured; m < measured + num_measured; m++) {
        if (!memcmp(m, &wanted, offsetof(Measured, workspace))) { *bytes = m->workspace; return true; }
        if (!differs_in_size_alone(m, &wanted)) continue;
        if (!near || fabs(activation_bytes(m) - size) < fabs(activation_bytes(near) - size)) near = m;
    }
    if (!near) return false;
    double near_size = activation_bytes(near);
    for (const Measured *m = measured; m < measured + num_measured; m++) {
        if (!differs_in_size_alone(m, &wanted)) continue;
        if (!far || fabs(activation_bytes(m) - near_size) > fabs(activation_bytes(far) - near_size)) far = m;
    }
    double far_size = activation_bytes(far), nearest = (double)near->workspace, estimate = nearest * size / near_size;
    if (far_size != near_size)
        estimate = nearest + (double)(far->workspace - near->workspace) * (size - near_size) / (far_size - near_size);
    *bytes = estimate > 0 ? (int64_t)estimate : 0;
    return true;
}

bool has_measured_workspace(const Operation *operation) {
    int64_t bytes;
    return measured_workspace(operation, &bytes);
}

int64_t workspace_of(const Operation *operation) {
    int64_t bytes;
    return measured_workspace(operation, &bytes) ? bytes : ruled_workspace(operation);
}

/* All three tensors, once; 0 for what engines compute without copies: grouped convolutions, and those in 3-D. */
static int64_t one_copy(const Operation *o) {
    if (o->x.num_dimensions != 4 || o->w.dimensions[1] != o->x.dimensions[1]) return 0;
    return element_bytes(o->x.data_type) * (elements(&o->x, false) + elements(&o->y, false) + elements(&o->w, false));
}

/* cuDNN 9.8, asked for A100 and RTX 3060, has engines that take up to twice x, y and w for the data gradient and up
 * to 1.9 times for the others; hardly any that take more. */
int64_t largest_workspace_of(const Operation *o) {
    int64_t usual = workspace_of(o), twice = 2 * one_copy(o);
    return usual > twice ? usual : twice;
}

int64_t next_workspace_of(const Operation *o) {
    int64_t once = one_copy(o);
    return workspace_of(o) < once ? once : largest_workspace_of(o);
}
