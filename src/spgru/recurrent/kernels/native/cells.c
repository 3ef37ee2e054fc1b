/* One step of GRU, LSTM and RNN on a CPU, forward and backward, and the moments they need.

   The formulas are those of the Triton kernels in the folder beside this one; constants come from
   spgru.functional.activation, in a header that library.py writes above this text. functions.py
   declares every function that is not static. Everything works on blocks of units small enough for
   the level-1 cache, in loops that a compiler turns into vector instructions: no calls, no branches
   that depend on a unit. */

#include <math.h>
#include <stddef.h>
#include <string.h>

#define BLOCK 64
/* so that the loop around it can become vector instructions */
#define UNROLL _Pragma("GCC unroll 16")
#define COUNT ((int)(sizeof(WIDTHS) / sizeof(WIDTHS[0])))

typedef float block[BLOCK];

/* condition ? a : b, by its bits: a compiler makes branches of the plain form, which end its vector
   instructions, unless it may assume that there are no NaN. Here they stay NaN. */
static inline float pick(int condition, float a, float b) {
    union { float number; int bits; } x = {a}, y = {b}, chosen;
    int mask = -(condition != 0);
    chosen.bits = (x.bits & mask) | (y.bits & ~mask);
    return chosen.number;
}

/* exp(x) for x <= 0, to rounding; what float32 cannot hold becomes its smallest number. */
static inline float exp_negative(float x) {
    x = pick(x < -87.0f, -87.0f, x);
    /* NaN has no whole number; it stays NaN in `rest` */
    int whole = (int)pick(x == x, x * 1.44269504f - 0.5f, 0.0f);
    float rest = x - (float)whole * 0.693359375f + (float)whole * 2.12194440e-4f;
    float value = 1.0f / 5040.0f;
    value = value * rest + 1.0f / 720.0f;
    value = value * rest + 1.0f / 120.0f;
    value = value * rest + 1.0f / 24.0f;
    value = value * rest + 1.0f / 6.0f;
    value = value * rest + 0.5f;
    value = value * rest + 1.0f;
    value = value * rest + 1.0f;
    union { unsigned bits; float power; } scale = {(unsigned)(whole + 127) << 23};
    return value * scale.power;
}

/* tanh(x / 2) with its relative accuracy near 0, and the slope of the sigmoid at x */
static inline float tanh_half(float x, float *slope) {
    float e = exp_negative(-fabsf(x)), half = 0.5f * x, square = half * half;
    float series = 62.0f / 2835.0f * square - 17.0f / 315.0f;
    series = ((series * square + 2.0f / 15.0f) * square - 1.0f / 3.0f) * square + 1.0f;
    float direct = (1.0f - e) / (1.0f + e);
    *slope = e / ((1.0f + e) * (1.0f + e));
    return pick(square < 0.0625f, half * series, copysignf(direct, x));
}

/* exp(x^2) erfc(x) for x >= 0 */
static inline float scaled_erfc(float x) {
    float t = 2.0f / (2.0f + x), value = ERFC[ERFC_DEGREE];
    UNROLL for (int k = ERFC_DEGREE - 1; k >= 0; k--) value = value * t + ERFC[k];
    return value * t;
}

static inline int any_far(int n, const float *var) {
    int found = 0;
    for (int j = 0; j < n; j++) found |= var[j] > HANDOVER;
    return found;
}

/* E sigmoid(X) - 1/2 and Var sigmoid(X) for X ~ N(mean, var) */
static inline void logistic(int n, const float *mean, const float *var, float *centred, float *out) {
    block t, g, v, even, second;
    for (int j = 0; j < n; j++) {
        t[j] = tanh_half(mean[j], &g[j]);
        v[j] = pick(var[j] > HANDOVER, HANDOVER, var[j]);
        even[j] = second[j] = 0.0f;
    }
    for (int i = 0; i < COUNT; i++)
        for (int j = 0; j < n; j++) {
            float u = v[j] * SQUARED_NODES[i], c = COSH[TERMS - 1];
            UNROLL for (int k = TERMS - 2; k >= 0; k--) c = c * u + COSH[k];
            c *= u;
            float kept = 1.0f / (1.0f + 2.0f * g[j] * c);
            even[j] += NODE_WEIGHTS[i] * c * kept;
            second[j] += NODE_WEIGHTS[i] * kept * kept * c * (2.0f + c * (1.0f + t[j] * t[j]));
        }
    for (int j = 0; j < n; j++) {
        float e = even[j] * g[j];
        centred[j] = t[j] * (0.5f - e);
        out[j] = g[j] * g[j] * second[j] - t[j] * t[j] * e * e;
    }
    if (!any_far(n, var)) return;
    for (int j = 0; j < n; j++) {
        float extra = pick(var[j] < HANDOVER, HANDOVER, var[j]) - HANDOVER;
        float limit = FARTHEST * sqrtf(extra + WIDTHS[COUNT - 1]), distance = fabsf(mean[j]);
        distance = pick(distance > limit, limit, distance);
        float tail = 0.0f, slope = 0.0f;
        UNROLL for (int k = 0; k < COUNT; k++) {
            float root = 1.0f / sqrtf(2.0f * (extra + WIDTHS[k])), scaled = distance * root;
            float bell = exp_negative(-scaled * scaled);
            tail += 0.5f * STEP_WEIGHTS[k] * bell * scaled_erfc(scaled);
            slope += SLOPE_WEIGHTS[k] * ROOT_PI * bell * root;
        }
        centred[j] = pick(var[j] > HANDOVER, copysignf(0.5f - tail, mean[j]), centred[j]);
        out[j] = pick(var[j] > HANDOVER, tail * (1.0f - tail) - slope, out[j]);
    }
}

typedef struct {
    block value, var;           /* centred mean, variance */
    block by_mean, by_var;      /* of the mean */
    block var_by_mean, var_by_var;
} slopes;

static inline void logistic_with_slopes(int n, const float *mean, const float *var, slopes *s) {
    block t, g, v, even, even_g, even_v, second, second_g, second_t, second_v;
    for (int j = 0; j < n; j++) {
        t[j] = tanh_half(mean[j], &g[j]);
        v[j] = pick(var[j] > HANDOVER, HANDOVER, var[j]);
        even[j] = even_g[j] = even_v[j] = 0.0f;
        second[j] = second_g[j] = second_t[j] = second_v[j] = 0.0f;
    }
    for (int i = 0; i < COUNT; i++)
        for (int j = 0; j < n; j++) {
            float u = v[j] * SQUARED_NODES[i], c = COSH[TERMS - 1], rise = COSH_SLOPE[TERMS - 1];
            UNROLL for (int k = TERMS - 2; k >= 0; k--) {
                c = c * u + COSH[k];
                rise = rise * u + COSH_SLOPE[k];
            }
            c *= u;
            rise *= SQUARED_NODES[i];
            float both = 1.0f + t[j] * t[j], kept = 1.0f / (1.0f + 2.0f * g[j] * c);
            float weighted = NODE_WEIGHTS[i] * kept * kept, term = c * (2.0f + c * both);
            even[j] += NODE_WEIGHTS[i] * c * kept;
            even_g[j] += weighted * c;
            even_v[j] += weighted * rise;
            second[j] += weighted * term;
            second_g[j] += weighted * kept * term;
            second_t[j] += weighted * c * c;
            second_v[j] += weighted * rise * (2.0f + 2.0f * c * both - 4.0f * g[j] * kept * term);
        }
    for (int j = 0; j < n; j++) {
        float gj = g[j], tj = t[j], tt = tj * tj, e = even[j] * gj;
        float e_mean = -gj * tj * even_g[j], e_var = gj * even_v[j];
        s->value[j] = tj * (0.5f - e);
        s->var[j] = gj * gj * second[j] - tt * e * e;
        s->by_mean[j] = gj * (1.0f - 2.0f * e) - tj * e_mean;
        s->by_var[j] = -tj * e_var;
        s->var_by_mean[j] = -2.0f * gj * gj * tj * second_g[j] + 4.0f * gj * gj * gj * tj * second_t[j]
                            - 4.0f * tj * gj * e * e - 2.0f * tt * e * e_mean;
        s->var_by_var[j] = gj * gj * second_v[j] - 2.0f * tt * e * e_var;
    }
    if (!any_far(n, var)) return;
    for (int j = 0; j < n; j++) {
        float extra = pick(var[j] < HANDOVER, HANDOVER, var[j]) - HANDOVER;
        float limit = FARTHEST * sqrtf(extra + WIDTHS[COUNT - 1]), distance = fabsf(mean[j]);
        distance = pick(distance > limit, limit, distance);
        float tail = 0.0f, rise = 0.0f, tail_v = 0.0f, slope = 0.0f, fall = 0.0f, slope_v = 0.0f;
        UNROLL for (int k = 0; k < COUNT; k++) {
            float root = 1.0f / sqrtf(2.0f * (extra + WIDTHS[k])), scaled = distance * root;
            float bell = exp_negative(-scaled * scaled), density = ROOT_PI * bell * root;
            tail += 0.5f * STEP_WEIGHTS[k] * bell * scaled_erfc(scaled);
            rise += STEP_WEIGHTS[k] * density;
            tail_v += STEP_WEIGHTS[k] * density * scaled * root;
            slope += SLOPE_WEIGHTS[k] * density;
            fall += SLOPE_WEIGHTS[k] * density * 2.0f * scaled * root;
            slope_v += SLOPE_WEIGHTS[k] * density * root * root * (2.0f * scaled * scaled - 1.0f);
        }
        float side = copysignf(1.0f, mean[j]), inner = 1.0f - 2.0f * tail;
        int far = var[j] > HANDOVER;
        s->value[j] = pick(far, side * (0.5f - tail), s->value[j]);
        s->var[j] = pick(far, tail * (1.0f - tail) - slope, s->var[j]);
        s->by_mean[j] = pick(far, rise, s->by_mean[j]);
        s->by_var[j] = pick(far, -side * tail_v, s->by_var[j]);
        s->var_by_mean[j] = pick(far, side * (fall - inner * rise), s->var_by_mean[j]);
        s->var_by_var[j] = pick(far, inner * tail_v - slope_v, s->var_by_var[j]);
    }
}

/* Every function below does `rows` rows of `size` units. The products x (with the input) and p (with
   the state) lie as (rows, gates size); operand_moments, [mean^2, var] for the next products, as
   (rows, 2 size). `at` is the place of a unit in its row of gates, `flat` its place among all units,
   `pair` its place in the moments. */
#define FOR_BLOCKS(gates)                                                                          \
    long chunks = (size + BLOCK - 1) / BLOCK, tasks = rows * chunks;                               \
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")             \
    for (long task = 0; task < tasks; task++) {                                                    \
        long row = task / chunks, first = task % chunks * BLOCK;                                   \
        int n = (int)(size - first < BLOCK ? size - first : BLOCK);                                \
        long flat = row * size + first, at = row * (gates) * size + first;                         \
        long pair = row * 2 * size + first;
#define END_BLOCKS }

/* scale * (x + p + bias) of one gate */
static inline void summed(int n, const float *x, const float *p, const float *bias, long first,
                          float scale, float *out) {
    for (int j = 0; j < n; j++) out[j] = x[j] + p[j];
    if (bias) for (int j = 0; j < n; j++) out[j] += bias[first + j];
    if (scale != 1.0f) for (int j = 0; j < n; j++) out[j] *= scale;
}

static inline void shifted(int n, long gate, long first, const float *p, const float *bias, float *out) {
    for (int j = 0; j < n; j++) out[j] = p[gate + j];
    if (bias) for (int j = 0; j < n; j++) out[j] += bias[first + j];
}

/* Gradient of a new state: from outside, and from W h, W.var h^2, (W.var + W^2) h.var after. */
static inline void incoming(int n, long flat, long pair, long size, const float *out_mean,
                            const float *out_var, const float *new_mean, const float *by_operand_mean,
                            const float *by_operand_moments, float *by_mean, float *by_var) {
    for (int j = 0; j < n; j++) {
        by_mean[j] = out_mean[flat + j] + by_operand_mean[flat + j]
                     + 2.0f * new_mean[flat + j] * by_operand_moments[pair + j];
        by_var[j] = out_var[flat + j] + by_operand_moments[pair + size + j];
    }
}

static inline float product_var(float a, float a_var, float b, float b_var) {
    return a_var * b_var + a_var * b * b + a * a * b_var;
}

typedef const float *restrict in;
typedef float *restrict out;

/* E[Z (1 - Z)] of a gate in [0, 1]. Where z has been rounded to 0 or 1 its variance is left. */
static inline float open_share(float z, float zv) {
    float share = z * (1.0f - z) - zv;
    return share > 0.0f ? share : 0.0f;
}

/* The adjoint of 2 b E[Z (1 - Z)] v, which a coherence b adds to a variance with this gradient: adds
   to those of Z and v, and gives that of b. */
static inline float along(float b, float z, float zv, float v, float by_var, float *by_z,
                          float *by_zv, float *by_v) {
    float share = open_share(z, zv), by_share = 2.0f * by_var * b;
    *by_z += by_share * v * (1.0f - 2.0f * z);
    *by_zv -= by_share * v;
    *by_v += by_share * share;
    return 2.0f * by_var * share * v;
}

/* A loop over units, compiled for states with a coherence and for those without, whose coherence is
   NULL: within, `is_coherent` is a constant. */
#define BY_COHERENCE(...)                                                                          \
    if (coherence) {                                                                               \
        enum { is_coherent = 1 };                                                                  \
        __VA_ARGS__                                                                                \
    } else {                                                                                       \
        enum { is_coherent = 0 };                                                                  \
        __VA_ARGS__                                                                                \
    }

/* The arguments of a step and of its adjoint; c is the cell of an LSTM, NULL for the others. bias may
   be NULL, p_mean_grad and p_var_grad where they would equal x_mean_grad and x_var_grad, and
   coherence_grad, of every row, where nobody asks for it. carried is the gradient that the state (of
   an LSTM, the cell) after the step has from the update after; then that of the state before. */
#define FORWARD                                                                                    \
    in x_mean, in x_var, in p_mean, in p_var, in bias, in bias_var, in coherence, in h_mean,       \
    in h_var, in c_mean, in c_var, out new_mean, out new_var, out new_c_mean, out new_c_var,       \
    out operand_moments, long rows, long size, long threads
#define BACKWARD                                                                                   \
    in x_mean, in x_var, in p_mean, in p_var, in bias, in bias_var, in coherence, in h_mean,       \
    in h_var, in c_mean, in c_var, in new_mean, in out_mean, in out_var, in by_operand_mean,       \
    in by_operand_moments, out x_mean_grad, out x_var_grad, out p_mean_grad, out p_var_grad,       \
    out coherence_grad, out carried_mean, out carried_var, long rows, long size, long threads

/* h' = (1 - z) c + z h from centred z and half of c, and the moments for the next products */
static inline void update(int n, long first, long flat, long pair, long size, const float *z,
                          const float *zv, const float *c, const float *cv, in coherence, in h_mean,
                          in h_var, out new_mean, out new_var, out operand_moments) {
    BY_COHERENCE(for (int j = 0; j < n; j++) {
        float zj = z[j] + 0.5f, cj = 2.0f * c[j], cvj = 4.0f * cv[j], hv = h_var[flat + j];
        float difference = h_mean[flat + j] - cj, mean = cj + zj * difference;
        float var = (1.0f - zj) * (1.0f - zj) * cvj + zj * zj * hv
                    + zv[j] * (cvj + hv + difference * difference);
        if (is_coherent) var += 2.0f * coherence[first + j] * open_share(zj, zv[j]) * hv;
        new_mean[flat + j] = mean;
        new_var[flat + j] = var;
        operand_moments[pair + j] = mean * mean;
        operand_moments[pair + size + j] = var;
    })
}

/* Sigmoids of all entries: value is centred, sigmoid - 1/2. */
void sigmoids(in mean, in var, out value, out value_var, long rows, long size, long threads) {
    long count = rows * size, tasks = (count + BLOCK - 1) / BLOCK;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (long task = 0; task < tasks; task++) {
        long first = task * BLOCK;
        int n = (int)(count - first < BLOCK ? count - first : BLOCK);
        logistic(n, mean + first, var + first, value + first, value_var + first);
    }
}

void gru_forward(FORWARD) {
    FOR_BLOCKS(3)
        block m, v, r, rv, z, zv, c, cv, pc, pcv;
        summed(n, x_mean + at, p_mean + at, bias, first, 1.0f, m);
        summed(n, x_var + at, p_var + at, bias_var, first, 1.0f, v);
        logistic(n, m, v, r, rv);
        summed(n, x_mean + at + size, p_mean + at + size, bias, first + size, 1.0f, m);
        summed(n, x_var + at + size, p_var + at + size, bias_var, first + size, 1.0f, v);
        logistic(n, m, v, z, zv);
        shifted(n, at + 2 * size, first + 2 * size, p_mean, bias, pc);
        shifted(n, at + 2 * size, first + 2 * size, p_var, bias_var, pcv);
        for (int j = 0; j < n; j++) {
            float reset = r[j] + 0.5f;
            m[j] = 2.0f * (x_mean[at + 2 * size + j] + reset * pc[j]);
            v[j] = 4.0f * (x_var[at + 2 * size + j] + product_var(reset, rv[j], pc[j], pcv[j]));
        }
        logistic(n, m, v, c, cv);
        update(n, first, flat, pair, size, z, zv, c, cv, coherence, h_mean, h_var, new_mean, new_var,
               operand_moments);
    END_BLOCKS
}

void gru_backward(BACKWARD) {
    FOR_BLOCKS(3)
        block m, v, pc, pcv, by_mean, by_var;
        slopes r, z, c;
        summed(n, x_mean + at, p_mean + at, bias, first, 1.0f, m);
        summed(n, x_var + at, p_var + at, bias_var, first, 1.0f, v);
        logistic_with_slopes(n, m, v, &r);
        summed(n, x_mean + at + size, p_mean + at + size, bias, first + size, 1.0f, m);
        summed(n, x_var + at + size, p_var + at + size, bias_var, first + size, 1.0f, v);
        logistic_with_slopes(n, m, v, &z);
        shifted(n, at + 2 * size, first + 2 * size, p_mean, bias, pc);
        shifted(n, at + 2 * size, first + 2 * size, p_var, bias_var, pcv);
        for (int j = 0; j < n; j++) {
            float reset = r.value[j] + 0.5f;
            m[j] = 2.0f * (x_mean[at + 2 * size + j] + reset * pc[j]);
            v[j] = 4.0f * (x_var[at + 2 * size + j] + product_var(reset, r.var[j], pc[j], pcv[j]));
        }
        logistic_with_slopes(n, m, v, &c);
        incoming(n, flat, pair, size, out_mean, out_var, new_mean, by_operand_mean, by_operand_moments, by_mean,
                 by_var);
        BY_COHERENCE(for (int j = 0; j < n; j++) {
            float hv = h_var[flat + j], rj = r.value[j] + 0.5f, zj = z.value[j] + 0.5f;
            float cj = 2.0f * c.value[j], cv = 4.0f * c.var[j], zv = z.var[j];
            float bm = by_mean[j] + carried_mean[flat + j], bv = by_var[j] + carried_var[flat + j];
            float difference = h_mean[flat + j] - cj;
            float by_difference = bm * zj + 2.0f * bv * zv * difference, by_c = bm - by_difference;
            float by_cv = bv * ((1.0f - zj) * (1.0f - zj) + zv);
            float by_z = bm * difference + 2.0f * bv * (zj * hv - (1.0f - zj) * cv);
            float by_zv = bv * (cv + hv + difference * difference), by_hv = bv * (zj * zj + zv);
            if (is_coherent) {
                float by_b = along(coherence[first + j], zj, zv, hv, bv, &by_z, &by_zv, &by_hv);
                if (coherence_grad) coherence_grad[flat + j] = by_b;
            }
            float by_xc = 4.0f * by_c * c.by_mean[j] + 8.0f * by_cv * c.var_by_mean[j];
            float by_xcv = 8.0f * by_c * c.by_var[j] + 16.0f * by_cv * c.var_by_var[j];
            float by_r = by_xc * pc[j] + 2.0f * by_xcv * rj * pcv[j];
            float by_rv = by_xcv * (pcv[j] + pc[j] * pc[j]);
            float by_xr = by_r * r.by_mean[j] + by_rv * r.var_by_mean[j];
            float by_xrv = by_r * r.by_var[j] + by_rv * r.var_by_var[j];
            float by_xz = by_z * z.by_mean[j] + by_zv * z.var_by_mean[j];
            float by_xzv = by_z * z.by_var[j] + by_zv * z.var_by_var[j];
            x_mean_grad[at + j] = p_mean_grad[at + j] = by_xr;
            x_var_grad[at + j] = p_var_grad[at + j] = by_xrv;
            x_mean_grad[at + size + j] = p_mean_grad[at + size + j] = by_xz;
            x_var_grad[at + size + j] = p_var_grad[at + size + j] = by_xzv;
            x_mean_grad[at + 2 * size + j] = by_xc;
            x_var_grad[at + 2 * size + j] = by_xcv;
            p_mean_grad[at + 2 * size + j] = by_xc * rj + 2.0f * by_xcv * r.var[j] * pc[j];
            p_var_grad[at + 2 * size + j] = by_xcv * (r.var[j] + rj * rj);
            carried_mean[flat + j] = by_difference;
            carried_var[flat + j] = by_hv;
        })
    END_BLOCKS
}

void lstm_forward(FORWARD) {
    FOR_BLOCKS(4)
        block m, v, value[4], var[4], t, tv;
        for (int k = 0; k < 4; k++) {
            /* the candidate's tanh is a logistic of twice its argument */
            float scale = k == 2 ? 2.0f : 1.0f;
            summed(n, x_mean + at + k * size, p_mean + at + k * size, bias, first + k * size, scale, m);
            summed(n, x_var + at + k * size, p_var + at + k * size, bias_var, first + k * size, scale * scale, v);
            logistic(n, m, v, value[k], var[k]);
        }
        BY_COHERENCE(for (int j = 0; j < n; j++) {
            float i = value[0][j] + 0.5f, f = value[1][j] + 0.5f, g = 2.0f * value[2][j];
            float c = f * c_mean[flat + j] + i * g;
            float cv = product_var(f, var[1][j], c_mean[flat + j], c_var[flat + j])
                       + product_var(i, var[0][j], g, 4.0f * var[2][j]);
            if (is_coherent)
                cv += 2.0f * coherence[first + j] * open_share(f, var[1][j]) * c_var[flat + j];
            new_c_mean[flat + j] = c;
            new_c_var[flat + j] = cv;
            m[j] = 2.0f * c;
            v[j] = 4.0f * cv;
        })
        logistic(n, m, v, t, tv);
        for (int j = 0; j < n; j++) {
            float o = value[3][j] + 0.5f, mean = 2.0f * o * t[j];
            float spread = product_var(o, var[3][j], 2.0f * t[j], 4.0f * tv[j]);
            new_mean[flat + j] = mean;
            new_var[flat + j] = spread;
            operand_moments[pair + j] = mean * mean;
            operand_moments[pair + size + j] = spread;
        }
    END_BLOCKS
}

void lstm_backward(BACKWARD) {
    FOR_BLOCKS(4)
        block m, v, by_mean, by_var, by[4], by_v[4];
        slopes s[4], t;
        for (int k = 0; k < 4; k++) {
            float scale = k == 2 ? 2.0f : 1.0f;
            summed(n, x_mean + at + k * size, p_mean + at + k * size, bias, first + k * size, scale, m);
            summed(n, x_var + at + k * size, p_var + at + k * size, bias_var, first + k * size, scale * scale, v);
            logistic_with_slopes(n, m, v, &s[k]);
        }
        for (int j = 0; j < n; j++) {
            float i = s[0].value[j] + 0.5f, f = s[1].value[j] + 0.5f, g = 2.0f * s[2].value[j];
            m[j] = 2.0f * (f * c_mean[flat + j] + i * g);
            v[j] = 4.0f * (product_var(f, s[1].var[j], c_mean[flat + j], c_var[flat + j])
                           + product_var(i, s[0].var[j], g, 4.0f * s[2].var[j]));
        }
        if (coherence)
            for (int j = 0; j < n; j++) {
                float share = open_share(s[1].value[j] + 0.5f, s[1].var[j]);
                v[j] += 8.0f * coherence[first + j] * share * c_var[flat + j];
            }
        logistic_with_slopes(n, m, v, &t);
        incoming(n, flat, pair, size, out_mean, out_var, new_mean, by_operand_mean, by_operand_moments, by_mean,
                 by_var);
        BY_COHERENCE(for (int j = 0; j < n; j++) {
            float i = s[0].value[j] + 0.5f, f = s[1].value[j] + 0.5f, o = s[3].value[j] + 0.5f;
            float iv = s[0].var[j], fv = s[1].var[j], ov = s[3].var[j];
            float g = 2.0f * s[2].value[j], gv = 4.0f * s[2].var[j];
            float tm = 2.0f * t.value[j], tv = 4.0f * t.var[j];
            float c = c_mean[flat + j], cv = c_var[flat + j], bm = by_mean[j], bv = by_var[j];
            float by_t = bm * o + 2.0f * bv * ov * tm, by_tv = bv * (ov + o * o);
            float by_c = carried_mean[flat + j] + 4.0f * by_t * t.by_mean[j] + 8.0f * by_tv * t.var_by_mean[j];
            float by_cv = carried_var[flat + j] + 8.0f * by_t * t.by_var[j] + 16.0f * by_tv * t.var_by_var[j];
            by[0][j] = by_c * g + 2.0f * by_cv * i * gv;
            by_v[0][j] = by_cv * (gv + g * g);
            by[1][j] = by_c * c + 2.0f * by_cv * f * cv;
            by_v[1][j] = by_cv * (cv + c * c);
            by[2][j] = 2.0f * (by_c * i + 2.0f * by_cv * iv * g);
            by_v[2][j] = 4.0f * by_cv * (iv + i * i);
            by[3][j] = bm * tm + 2.0f * bv * o * tv;
            by_v[3][j] = bv * (tv + tm * tm);
            carried_mean[flat + j] = by_c * f + 2.0f * by_cv * fv * c;
            carried_var[flat + j] = by_cv * (fv + f * f);
            if (is_coherent) {
                float by_b = along(coherence[first + j], f, fv, cv, by_cv, &by[1][j], &by_v[1][j],
                                   &carried_var[flat + j]);
                if (coherence_grad) coherence_grad[flat + j] = by_b;
            }
        })
        for (int k = 0; k < 4; k++) {
            float scale = k == 2 ? 2.0f : 1.0f;
            long gate = at + k * size;
            for (int j = 0; j < n; j++) {
                float mean = scale * (by[k][j] * s[k].by_mean[j] + by_v[k][j] * s[k].var_by_mean[j]);
                float var = scale * scale * (by[k][j] * s[k].by_var[j] + by_v[k][j] * s[k].var_by_var[j]);
                x_mean_grad[gate + j] = mean;
                x_var_grad[gate + j] = var;
                if (p_mean_grad) p_mean_grad[gate + j] = mean;
                if (p_var_grad) p_var_grad[gate + j] = var;
            }
        }
    END_BLOCKS
}

void rnn_forward(FORWARD) {
    (void)coherence;
    FOR_BLOCKS(1)
        block m, v, t, tv;
        summed(n, x_mean + at, p_mean + at, bias, first, 2.0f, m);
        summed(n, x_var + at, p_var + at, bias_var, first, 4.0f, v);
        logistic(n, m, v, t, tv);
        for (int j = 0; j < n; j++) {
            float mean = 2.0f * t[j], var = 4.0f * tv[j];
            new_mean[flat + j] = mean;
            new_var[flat + j] = var;
            operand_moments[pair + j] = mean * mean;
            operand_moments[pair + size + j] = var;
        }
    END_BLOCKS
}

void rnn_backward(BACKWARD) {
    (void)coherence, (void)coherence_grad;
    FOR_BLOCKS(1)
        block m, v, by_mean, by_var;
        slopes t;
        summed(n, x_mean + at, p_mean + at, bias, first, 2.0f, m);
        summed(n, x_var + at, p_var + at, bias_var, first, 4.0f, v);
        logistic_with_slopes(n, m, v, &t);
        incoming(n, flat, pair, size, out_mean, out_var, new_mean, by_operand_mean, by_operand_moments, by_mean,
                 by_var);
        for (int j = 0; j < n; j++) {
            float mean = 4.0f * by_mean[j] * t.by_mean[j] + 8.0f * by_var[j] * t.var_by_mean[j];
            float var = 8.0f * by_mean[j] * t.by_var[j] + 16.0f * by_var[j] * t.var_by_var[j];
            x_mean_grad[at + j] = mean;
            x_var_grad[at + j] = var;
            if (p_mean_grad) p_mean_grad[at + j] = mean;
            if (p_var_grad) p_var_grad[at + j] = var;
        }
    END_BLOCKS
}

/* The GRU that resets the state before the product, in two halves with a product between them. p is
   (rows, 2 size), of r and z; q (rows, size), the product with the reset state r h. */

/* Gates and reset state; z_mean is centred, z - 1/2. */
void reset_before_gates_forward(in x_mean, in x_var, in p_mean, in p_var, in bias, in bias_var,
                                in h_mean, in h_var, out z_mean, out z_var, out reset_mean,
                                out reset_moments, long rows, long size, long threads) {
    FOR_BLOCKS(3)
        block m, v, r, rv, z, zv;
        summed(n, x_mean + at, p_mean + pair, bias, first, 1.0f, m);
        summed(n, x_var + at, p_var + pair, bias_var, first, 1.0f, v);
        logistic(n, m, v, r, rv);
        summed(n, x_mean + at + size, p_mean + pair + size, bias, first + size, 1.0f, m);
        summed(n, x_var + at + size, p_var + pair + size, bias_var, first + size, 1.0f, v);
        logistic(n, m, v, z, zv);
        for (int j = 0; j < n; j++) {
            float rj = r[j] + 0.5f, h = h_mean[flat + j], mean = rj * h;
            z_mean[flat + j] = z[j];
            z_var[flat + j] = zv[j];
            reset_mean[flat + j] = mean;
            reset_moments[pair + j] = mean * mean;
            reset_moments[pair + size + j] = product_var(rj, rv[j], h, h_var[flat + j]);
        }
    END_BLOCKS
}

/* Candidate and new state. */
void reset_before_update_forward(in x_mean, in x_var, in q_mean, in q_var, in bias, in bias_var,
                                 in coherence, in z_mean, in z_var, in h_mean, in h_var,
                                 out new_mean, out new_var, out operand_moments, long rows,
                                 long size, long threads) {
    FOR_BLOCKS(3)
        block m, v, c, cv;
        long gate = at + 2 * size;
        summed(n, x_mean + gate, q_mean + flat, bias, first + 2 * size, 2.0f, m);
        summed(n, x_var + gate, q_var + flat, bias_var, first + 2 * size, 4.0f, v);
        logistic(n, m, v, c, cv);
        update(n, first, flat, pair, size, z_mean + flat, z_var + flat, c, cv, coherence, h_mean,
               h_var, new_mean, new_var, operand_moments);
    END_BLOCKS
}

/* The adjoint of the second half, and of z. */
void reset_before_update_backward(in x_mean, in x_var, in p_mean, in p_var, in q_mean, in q_var,
                                  in bias, in bias_var, in coherence, in h_mean, in h_var,
                                  in new_mean, in out_mean, in out_var, in by_operand_mean, in by_operand_moments,
                                  out x_mean_grad, out x_var_grad, out p_mean_grad, out p_var_grad,
                                  out q_mean_grad, out q_var_grad, out coherence_grad,
                                  out carried_mean, out carried_var, long rows, long size, long threads) {
    FOR_BLOCKS(3)
        block m, v, by_mean, by_var;
        slopes z, c;
        long gate = at + 2 * size;
        summed(n, x_mean + at + size, p_mean + pair + size, bias, first + size, 1.0f, m);
        summed(n, x_var + at + size, p_var + pair + size, bias_var, first + size, 1.0f, v);
        logistic_with_slopes(n, m, v, &z);
        summed(n, x_mean + gate, q_mean + flat, bias, first + 2 * size, 2.0f, m);
        summed(n, x_var + gate, q_var + flat, bias_var, first + 2 * size, 4.0f, v);
        logistic_with_slopes(n, m, v, &c);
        incoming(n, flat, pair, size, out_mean, out_var, new_mean, by_operand_mean,
                 by_operand_moments, by_mean, by_var);
        BY_COHERENCE(for (int j = 0; j < n; j++) {
            float hv = h_var[flat + j], zj = z.value[j] + 0.5f, zv = z.var[j];
            float cj = 2.0f * c.value[j], cv = 4.0f * c.var[j];
            float bm = by_mean[j] + carried_mean[flat + j], bv = by_var[j] + carried_var[flat + j];
            float difference = h_mean[flat + j] - cj;
            float by_difference = bm * zj + 2.0f * bv * zv * difference, by_c = bm - by_difference;
            float by_cv = bv * ((1.0f - zj) * (1.0f - zj) + zv);
            float by_z = bm * difference + 2.0f * bv * (zj * hv - (1.0f - zj) * cv);
            float by_zv = bv * (cv + hv + difference * difference), by_hv = bv * (zj * zj + zv);
            if (is_coherent) {
                float by_b = along(coherence[first + j], zj, zv, hv, bv, &by_z, &by_zv, &by_hv);
                if (coherence_grad) coherence_grad[flat + j] = by_b;
            }
            x_mean_grad[gate + j] = q_mean_grad[flat + j] =
                4.0f * by_c * c.by_mean[j] + 8.0f * by_cv * c.var_by_mean[j];
            x_var_grad[gate + j] = q_var_grad[flat + j] =
                8.0f * by_c * c.by_var[j] + 16.0f * by_cv * c.var_by_var[j];
            x_mean_grad[at + size + j] = p_mean_grad[pair + size + j] =
                by_z * z.by_mean[j] + by_zv * z.var_by_mean[j];
            x_var_grad[at + size + j] = p_var_grad[pair + size + j] =
                by_z * z.by_var[j] + by_zv * z.var_by_var[j];
            carried_mean[flat + j] = by_difference;
            carried_var[flat + j] = by_hv;
        })
    END_BLOCKS
}

/* The adjoint of the first half without z; adds to carried. */
void reset_before_gates_backward(in x_mean, in x_var, in p_mean, in p_var, in bias, in bias_var,
                                 in h_mean, in h_var, in by_reset_mean, in by_reset_moments,
                                 out x_mean_grad, out x_var_grad, out p_mean_grad, out p_var_grad,
                                 out carried_mean, out carried_var, long rows, long size,
                                 long threads) {
    FOR_BLOCKS(3)
        block m, v;
        slopes r;
        summed(n, x_mean + at, p_mean + pair, bias, first, 1.0f, m);
        summed(n, x_var + at, p_var + pair, bias_var, first, 1.0f, v);
        logistic_with_slopes(n, m, v, &r);
        for (int j = 0; j < n; j++) {
            float rj = r.value[j] + 0.5f, rv = r.var[j], h = h_mean[flat + j], hv = h_var[flat + j];
            float bm = by_reset_mean[flat + j] + 2.0f * rj * h * by_reset_moments[pair + j];
            float bv = by_reset_moments[pair + size + j];
            float by_r = bm * h + 2.0f * bv * rj * hv, by_rv = bv * (hv + h * h);
            x_mean_grad[at + j] = p_mean_grad[pair + j] =
                by_r * r.by_mean[j] + by_rv * r.var_by_mean[j];
            x_var_grad[at + j] = p_var_grad[pair + j] =
                by_r * r.by_var[j] + by_rv * r.var_by_var[j];
            carried_mean[flat + j] += bm * rj + 2.0f * bv * rv * h;
            carried_var[flat + j] += bv * (rv + rj * rj);
        }
    END_BLOCKS
}

/* Whole steps with their products, for batches so small that calling a library costs more. */

#define LANES 16
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

static inline lanes load(const float *from) {
    lanes value;
    memcpy(&value, from, sizeof(value)); /* wherever it lies */
    return value;
}

static inline float total(lanes value) {
    float parts[LANES];
    memcpy(parts, &value, sizeof(value));
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) parts[lane] += parts[lane + half];
    return parts[0];
}

/* W x and W.var x^2 + (W.var + g W^2) x.var of `outputs` rows of W; x_var may be NULL for 0, and
   the gain NULL for 1. */
static void multiply(long rows, long inputs, long outputs, in x_mean, in x_var, in weight,
                     in weight_var, in gain, in bias, in bias_var, out p_mean, out p_var) {
    long whole = inputs - inputs % LANES;
    for (long row = 0; row < rows; row++)
        for (long o = 0; o < outputs; o++) {
            const float *x = x_mean + row * inputs, *xv = x_var ? x_var + row * inputs : NULL;
            const float *w = weight + o * inputs, *wv = weight_var + o * inputs;
            float g = gain ? gain[o] : 1.0f;
            lanes means = {0}, vars = {0};
            if (xv)
                for (long i = 0; i < whole; i += LANES) {
                    lanes a = load(x + i), b = load(w + i), spread = load(xv + i);
                    means += a * b;
                    vars += load(wv + i) * (a * a + spread) + b * b * (g * spread);
                }
            else
                for (long i = 0; i < whole; i += LANES) {
                    lanes a = load(x + i);
                    means += a * load(w + i);
                    vars += load(wv + i) * (a * a);
                }
            float mean = total(means), var = total(vars);
            for (long i = whole; i < inputs; i++) {
                float a = x[i], spread = xv ? xv[i] : 0.0f;
                mean += a * w[i];
                var += wv[i] * (a * a + spread) + w[i] * w[i] * (g * spread);
            }
            p_mean[row * outputs + o] = mean + (bias ? bias[o] : 0.0f);
            p_var[row * outputs + o] = var + (bias_var ? bias_var[o] : 0.0f);
        }
}

/* x is the input itself here, (rows, inputs), and scratch has (4 gates + 4) rows size numbers. */
#define WHOLE_STEP                                                                                 \
    in x_mean, in x_var, in input_weight, in input_weight_var, in input_gain, in input_bias,       \
    in input_bias_var, in weight, in weight_var, in gain, in bias, in bias_var, in coherence,      \
    in h_mean, in h_var, in c_mean, in c_var, out new_mean, out new_var, out new_c_mean, out new_c_var,\
    out scratch, long rows, long inputs, long size

#define PRODUCTS(gates, hidden_gates)                                                              \
    long width = (gates) * size * rows;                                                            \
    float *x_p = scratch, *x_p_var = x_p + width, *p = x_p_var + width, *p_var = p + width;        \
    float *rest = p_var + width;                                                                   \
    multiply(rows, inputs, (gates) * size, x_mean, x_var, input_weight, input_weight_var,          \
             input_gain, input_bias, input_bias_var, x_p, x_p_var);                                \
    multiply(rows, size, (hidden_gates) * size, h_mean, h_var, weight, weight_var, gain, NULL,     \
             NULL, p, p_var);

static void gru_whole(WHOLE_STEP) {
    PRODUCTS(3, 3)
    gru_forward(x_p, x_p_var, p, p_var, bias, bias_var, coherence, h_mean, h_var, c_mean, c_var, new_mean,
                new_var, new_c_mean, new_c_var, rest, rows, size, 1);
}

static void lstm_whole(WHOLE_STEP) {
    PRODUCTS(4, 4)
    lstm_forward(x_p, x_p_var, p, p_var, bias, bias_var, coherence, h_mean, h_var, c_mean, c_var, new_mean,
                 new_var, new_c_mean, new_c_var, rest, rows, size, 1);
}

static void rnn_whole(WHOLE_STEP) {
    PRODUCTS(1, 1)
    rnn_forward(x_p, x_p_var, p, p_var, bias, bias_var, coherence, h_mean, h_var, c_mean, c_var, new_mean,
                new_var, new_c_mean, new_c_var, rest, rows, size, 1);
}

static void gru_reset_before_whole(WHOLE_STEP) {
    PRODUCTS(3, 2)
    (void)c_mean, (void)c_var, (void)new_c_mean, (void)new_c_var;
    long units = rows * size, used = 2 * size * size;
    float *z = rest, *z_var = z + units, *moments = z_var + units;
    /* the third gate's part of p is free: the reset state, and in p_var its variance */
    float *reset = p + 2 * units, *reset_var = p_var + 2 * units;
    reset_before_gates_forward(x_p, x_p_var, p, p_var, bias, bias_var, h_mean, h_var, z, z_var,
                               reset, moments, rows, size, 1);
    for (long row = 0; row < rows; row++)
        for (long j = 0; j < size; j++)
            reset_var[row * size + j] = moments[row * 2 * size + size + j];
    multiply(rows, size, size, reset, reset_var, weight + used, weight_var + used,
             gain ? gain + 2 * size : NULL, NULL, NULL, p, p_var);
    reset_before_update_forward(x_p, x_p_var, p, p_var, bias, bias_var, coherence, z, z_var, h_mean,
                                h_var, new_mean, new_var, moments, rows, size, 1);
}

/* All steps: x is (steps, rows, inputs), and every new state (steps, rows, size). h and c are the
   state before the first step, which is the last in time if `reverse`. */
#define WHOLE_STEPS WHOLE_STEP, long steps, long reverse
#define OVER_TIME(step)                                                                            \
    long units = rows * size;                                                                      \
    for (long k = 0; k < steps; k++) {                                                             \
        long now = (reverse ? steps - 1 - k : k) * units;                                          \
        long before = reverse ? now + units : now - units;                                         \
        long x_at = (reverse ? steps - 1 - k : k) * rows * inputs;                                 \
        step(x_mean + x_at, x_var ? x_var + x_at : NULL, input_weight, input_weight_var,           \
             input_gain, input_bias, input_bias_var, weight, weight_var, gain, bias, bias_var,     \
             coherence,                                                                            \
             k ? new_mean + before : h_mean, k ? new_var + before : h_var,                         \
             k && c_mean ? new_c_mean + before : c_mean, k && c_var ? new_c_var + before : c_var,  \
             new_mean + now, new_var + now, new_c_mean ? new_c_mean + now : NULL,                  \
             new_c_var ? new_c_var + now : NULL, scratch, rows, inputs, size);                     \
    }

void gru_steps(WHOLE_STEPS) { OVER_TIME(gru_whole) }
void lstm_steps(WHOLE_STEPS) { OVER_TIME(lstm_whole) }
void rnn_steps(WHOLE_STEPS) { OVER_TIME(rnn_whole) }
void gru_reset_before_steps(WHOLE_STEPS) { OVER_TIME(gru_reset_before_whole) }
