/* Gradients of many outputs through all steps of a layer at once, for small layers; see
   kernels/tapped.py. The adjoint of a step is linear in the gradients that come in: its coefficients
   are given, one set (column) for each of mean and variance of the state and, for an LSTM, mean and
   variance of the cell. What both files use stands in cells.c, above this text. */

/* by memcpy, since rows need not be aligned */
static inline void store(float *to, lanes x) { memcpy(to, &x, sizeof x); }

/* out (m, n) = p (m, k) w (k, n) for small matrices, four rows by sixteen columns at a time. Rows
   beyond the last are the last again. */
static inline void small_product(long m, long k, long n, in p, in w, out result) {
    for (long row = 0; row < m; row += 4) {
        long last = m - 1, rows[4] = {row, row + 1, row + 2, row + 3};
        for (int r = 1; r < 4; r++) rows[r] = rows[r] < last ? rows[r] : last;
        const float *a = p + rows[0] * k, *b = p + rows[1] * k, *c = p + rows[2] * k;
        const float *d = p + rows[3] * k;
        long column = 0;
        for (; column + LANES <= n; column += LANES) {
            lanes sa = {0.0f}, sb = {0.0f}, sc = {0.0f}, sd = {0.0f};
            const float *from = w + column;
            for (long i = 0; i < k; i++, from += n) {
                lanes x = load(from);
                sa += a[i] * x;
                sb += b[i] * x;
                sc += c[i] * x;
                sd += d[i] * x;
            }
            store(result + rows[3] * n + column, sd);
            store(result + rows[2] * n + column, sc);
            store(result + rows[1] * n + column, sb);
            store(result + rows[0] * n + column, sa);
        }
        if (column == n) continue;
        for (int r = 0; r < 4; r++) {
            float *to = result + rows[r] * n;
            for (long j = column; j < n; j++) to[j] = 0.0f;
            for (long i = 0; i < k; i++) {
                float factor = p[rows[r] * k + i];
                for (long j = column; j < n; j++) to[j] += factor * w[i * n + j];
            }
        }
    }
}

/* sum over columns of coefficient * incoming for one set of units */
static inline void combine(long columns, long size, const float *restrict c, long column_size,
                           const float *const *incoming, float *restrict r) {
    const float *restrict a = incoming[0], *restrict b = incoming[1], *restrict d = c + column_size;
    if (columns == 2) {
        for (long j = 0; j < size; j++) r[j] = c[j] * a[j] + d[j] * b[j];
        return;
    }
    const float *restrict e = d + column_size, *restrict f = e + column_size;
    const float *restrict x = incoming[2], *restrict y = incoming[3];
    for (long j = 0; j < size; j++) r[j] = c[j] * a[j] + d[j] * b[j] + e[j] * x[j] + f[j] * y[j];
}

/* Steps whose gradients are held back, so that their sum is read and written once for all of them. */
#define HELD 8

/* sums (outputs, width, size) += sum over steps of p_mean h_mean' + p_var (slope h_var)': the
   gradients by a weight. p (steps, outputs, width), weighted (steps, width, size) is slope h_var. */
static inline void add_products(long steps, long outputs, long width, long size, in p_mean, in p_var,
                                const float *const *h_mean, in weighted, out sums) {
    long all = outputs * width, whole = size - size % LANES;
    for (long i = 0; i < width; i++)
        for (long o = 0; o < outputs; o++) {
            long at = o * width + i;
            float *to = sums + at * size;
            for (long j = 0; j < whole; j += LANES) {
                lanes sum = load(to + j);
                for (long k = 0; k < steps; k++)
                    sum += p_mean[k * all + at] * load(h_mean[k] + j)
                           + p_var[k * all + at] * load(weighted + (k * width + i) * size + j);
                store(to + j, sum);
            }
            for (long j = whole; j < size; j++)
                for (long k = 0; k < steps; k++)
                    to[j] += p_mean[k * all + at] * h_mean[k][j]
                             + p_var[k * all + at] * weighted[(k * width + i) * size + j];
        }
}

/* the form of the remainders for one row, c one set of units for each pair of columns */
static inline float form(long columns, long size, const float *restrict c, long pair_size,
                         const float *const *incoming) {
    float rest = 0.0f;
    lanes sums = {0.0f};
    for (long a = 0; a < columns; a++)
        for (long b = a; b < columns; b++, c += pair_size) {
            const float *restrict x = incoming[a], *restrict y = incoming[b];
            long j = 0;
            for (; j + LANES <= size; j += LANES) sums += load(c + j) * load(x + j) * load(y + j);
            for (; j < size; j++) rest += c[j] * x[j] * y[j];
        }
    return total(sums) + rest;
}

/* Rows of coefficients and h lie in the order of steps, those of out and x gradients in the order of
   time: step k starts at starts[k] and times[k]. by_mean, by_var, cell_mean and cell_var (sequences,
   outputs, size) are the gradients that come in after the last step, then those of the initial state.
   x_mean and x_var (rows, outputs, gates size) are filled, x_var may be NULL. To by_weight (sequences,
   outputs, gates size, size) and by_bias are added the gradients by weight and bias, to remainder
   (sequences, outputs) the forms (pairs of columns, rows, size) of the gradients. scratch holds
   outputs (2 HELD gates + 3) size + HELD gates size^2 numbers for each sequence. */
void many_adjoints(in x_mean_c, in x_var_c, in p_mean_c, in p_var_c, in carried_mean_c,
                   in carried_var_c, in h_mean, in h_var, in weight, in weight_moments, in slope,
                   in out_mean, in out_var, out by_mean, out by_var, out cell_mean, out cell_var,
                   out x_mean, out x_var, out by_weight, out by_bias, in forms, out remainder,
                   out scratch,
                   const long *starts, const long *times, const long *sizes, long steps, long rows,
                   long sequences, long outputs, long size, long gates, long columns, long threads) {
    long width = gates * size, all = rows * width;
    long room = outputs * (2 * HELD * width + 3 * size) + HELD * width * size;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (long b = 0; b < sequences; b++) {
        float *p_means = scratch + b * room, *p_vars = p_means + HELD * outputs * width;
        float *new_mean = p_vars + HELD * outputs * width;
        float *new_moments = new_mean + outputs * size, *weighted = new_moments + 2 * outputs * size;
        const float *held_h[HELD];
        long held = 0;
        for (long k = steps - 1; k >= 0; k--) {
            if (b >= sizes[k]) continue;
            long row = starts[k] + b, at = row * width, time = times[k] + b;
            float *p_mean = p_means + held * outputs * width, *p_var = p_vars + held * outputs * width;
            for (long o = 0; o < outputs; o++) {
                long state = (b * outputs + o) * size, come = (time * outputs + o) * size;
                float *m = by_mean + state, *v = by_var + state;
                for (long j = 0; j < size; j++) {
                    m[j] += out_mean[come + j];
                    v[j] += out_var[come + j];
                }
                const float *incoming[4] = {m, v, cell_mean ? cell_mean + state : NULL,
                                            cell_var ? cell_var + state : NULL};
                remainder[b * outputs + o]
                    += form(columns, size, forms + row * size, rows * size, incoming);
                long to = o * width, to_x = (time * outputs + o) * width;
                for (long g = 0; g < width; g += size) {
                    long from = at + g;
                    combine(columns, size, p_mean_c + from, all, incoming, p_mean + to + g);
                    combine(columns, size, p_var_c + from, all, incoming, p_var + to + g);
                    combine(columns, size, x_mean_c + from, all, incoming, x_mean + to_x + g);
                    if (x_var)
                        combine(columns, size, x_var_c + from, all, incoming, x_var + to_x + g);
                }
            }
            const float *h = h_mean + row * size, *spread = h_var + row * size;
            float *second = weighted + held * width * size;
            for (long i = 0; i < width; i++)
                for (long j = 0; j < size; j++) second[i * size + j] = slope[i * size + j] * spread[j];
            held_h[held++] = h;
            if (held == HELD) {
                add_products(held, outputs, width, size, p_means, p_vars, held_h, weighted,
                             by_weight + b * outputs * width * size);
                held = 0;
            }
            float *bias = by_bias + b * outputs * width;
            for (long i = 0; i < outputs * width; i++) bias[i] += p_mean[i];
            small_product(outputs, width, size, p_mean, weight, new_mean);
            small_product(outputs, width, 2 * size, p_var, weight_moments, new_moments);
            for (long o = 0; o < outputs; o++) {
                long state = (b * outputs + o) * size;
                float *m = by_mean + state, *v = by_var + state;
                const float *square = new_moments + 2 * o * size;
                const float *incoming[4] = {m, v, cell_mean ? cell_mean + state : NULL,
                                            cell_var ? cell_var + state : NULL};
                float carried[2][size];
                combine(columns, size, carried_mean_c + row * size, rows * size, incoming, carried[0]);
                combine(columns, size, carried_var_c + row * size, rows * size, incoming, carried[1]);
                for (long j = 0; j < size; j++) {
                    m[j] = new_mean[o * size + j] + 2.0f * h[j] * square[j];
                    v[j] = square[size + j];
                }
                if (cell_mean)
                    for (long j = 0; j < size; j++) {
                        cell_mean[state + j] = carried[0][j];
                        cell_var[state + j] = carried[1][j];
                    }
                else
                    for (long j = 0; j < size; j++) {
                        m[j] += carried[0][j];
                        v[j] += carried[1][j];
                    }
            }
        }
        add_products(held, outputs, width, size, p_means, p_vars, held_h, weighted,
                     by_weight + b * outputs * width * size);
    }
}
