/* What training spends its time on besides matrix products, called from fused.py: RMSNorm (at the
 * end), and the penalised softmax of First Passage Attention, one (T x T) matrix after another, so
 * that everything of a matrix stays in cache. Each with its gradient.
 *
 * For i >= j:   p[i][j] = softmax_j(s[i][j] - slope * rise[i][j])
 *               rise[i][j] = max(0, level[j] - low[i][j]),  low[i][j] = min field[j+1 .. i]
 *
 * Row i of low follows from row i-1 by low[i][j] = min(low[i-1][j], field[i]); on the diagonal it
 * is FAR, a finite stand-in for +inf. Besides the weights the forward pass gives
 *     living = sum over j < i of max(0, 1 - unit * slope * rise[i][j]).
 */
#include <stdint.h>
#include <string.h>

#define FAR 3e38f

/* e^x for x <= 0, relative error about 1e-7: 2^n by its bits, the rest by its series. */
static inline float exp_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = __builtin_floorf(x * 1.44269504f + 0.5f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return y * power;
}

/* Where a row's loops over its first i + 1 columns end: whole vectors as far as they go, what lies
 * beyond the diagonal is masked. */
static inline int64_t whole(int64_t i, int64_t T) {
    int64_t end = (i + 16) & ~(int64_t)15;
    return end < T ? end : T;
}

/* logits s to weights p, both [n][T][T] (p is 0 above the diagonal). field, level [n][T]; slope, unit,
 * living [n]; low [T] is scratch. field NULL: no penalty. */
void fpa_forward(int64_t n, int64_t T, const float *restrict s, float *restrict p,
                 const float *restrict field, const float *restrict level, const float *restrict slope,
                 const float *restrict unit, float *restrict living, float *restrict low) {
    for (int64_t g = 0; g < n; g++, s += T * T, p += T * T) {
        const float *x = field ? field + g * T : 0, *l = field ? level + g * T : 0;
        float steep = field ? slope[g] : 0, per = field ? unit[g] : 0;
        double alive = 0;
        for (int64_t i = 0; i < T; i++) {
            const float *restrict in = s + i * T;
            float *restrict row = p + i * T;
            float most = in[i], sum = 0;
            int64_t end = whole(i, T);
            if (field) {
                float now = x[i];
                low[i] = FAR;
                #pragma omp simd reduction(max : most) reduction(+ : sum)
                for (int64_t j = 0; j < end; j++) {
                    float deep = j < i && now < low[j] ? now : low[j];
                    low[j] = deep;
                    float rise = l[j] - deep > 0 ? l[j] - deep : 0;
                    float v = j <= i ? in[j] - steep * rise : -FAR;
                    row[j] = v;
                    most = v > most ? v : most;
                    float left = 1 - per * steep * rise;
                    sum += j < i && left > 0 ? left : 0;
                }
                alive += sum;
            } else {
                #pragma omp simd reduction(max : most)
                for (int64_t j = 0; j < end; j++) {
                    float v = j <= i ? in[j] : -FAR;
                    row[j] = v;
                    most = v > most ? v : most;
                }
            }
            sum = 0;
            #pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < end; j++) {
                float e = row[j] - most > -87.0f ? exp_negative(row[j] - most) : 0;
                row[j] = e;
                sum += e;
            }
            float scale = 1 / sum;
            #pragma omp simd
            for (int64_t j = 0; j < end; j++) row[j] *= scale;
            memset(row + end, 0, (T - end) * sizeof(float));
        }
        if (field) living[g] = (float)alive;
    }
}

/* given [n][T][T] is dL/dp, grad [n][T][T] becomes dL/ds; grad_living [n] is dL/dliving. grad_field,
 * grad_level [n][T] and grad_slope [n] are written. low [T][T] and carry [T] are scratch.
 *
 * The gradient of low[i][j] belongs to the first position that attains the minimum: going up
 * from the last row, what has gathered in column j leaves it at the row where low[.][j] last
 * became strictly smaller. */
void fpa_backward(int64_t n, int64_t T, const float *restrict p, const float *restrict given,
                  float *restrict grad,
                  const float *restrict field, const float *restrict level,
                  const float *restrict slope, const float *restrict unit,
                  const float *restrict grad_living, float *restrict grad_field,
                  float *restrict grad_level, float *restrict grad_slope,
                  float *restrict low, float *restrict carry) {
    for (int64_t g = 0; g < n; g++, p += T * T, given += T * T, grad += T * T) {
        const float *x = field ? field + g * T : 0, *l = field ? level + g * T : 0;
        float *dl = field ? grad_level + g * T : 0;
        float steep = field ? slope[g] : 0, per = field ? unit[g] : 0;
        float press = field ? per * grad_living[g] : 0;
        double steep_sum = 0;
        if (field) {
            for (int64_t i = 0; i < T; i++) {
                float *restrict row = low + i * T;
                const float *before = low + (i - 1) * T;
                float now = x[i];
                #pragma omp simd
                for (int64_t j = 0; j < i; j++) row[j] = before[j] < now ? before[j] : now;
                row[i] = FAR;
                carry[i] = dl[i] = 0;
            }
        }
        for (int64_t i = T - 1; i >= 0; i--) {
            const float *restrict w = p + i * T, *restrict in = given + i * T;
            float *restrict d = grad + i * T;
            float dot = 0;
            #pragma omp simd reduction(+ : dot)
            for (int64_t j = 0; j <= i; j++) dot += w[j] * in[j];
            #pragma omp simd
            for (int64_t j = 0; j <= i; j++) d[j] = w[j] * (in[j] - dot);
            memset(d + i + 1, 0, (T - 1 - i) * sizeof(float));
            if (!field) continue;
            float left_here = 0, by_slope = 0;
            if (i > 0) {
                const float *restrict here = low + i * T;
                const float *restrict before = low + (i - 1) * T;
                #pragma omp simd reduction(+ : left_here, by_slope)
                for (int64_t j = 0; j < i; j++) {
                    float rise = l[j] - here[j];
                    float dpen = -d[j] - (1 - per * steep * rise > 0 ? press : 0);
                    dpen = rise > 0 ? dpen : 0;
                    by_slope += dpen * (rise > 0 ? rise : 0);
                    dl[j] += steep * dpen;
                    float held = carry[j] - steep * dpen;
                    float leaving = here[j] < before[j] ? held : 0;
                    left_here += leaving;
                    carry[j] = held - leaving;
                }
            }
            grad_field[g * T + i] = left_here;
            steep_sum += by_slope;
        }
        if (field) grad_slope[g] = (float)steep_sum;
    }
}

/* y = x * inverse * weight, inverse[i] = 1 / sqrt(mean of x[i]^2 + eps); x, y [n][d], weight [d],
 * inverse [n]. */
void rms_forward(int64_t n, int64_t d, const float *restrict x, const float *restrict weight,
                 float eps, float *restrict y, float *restrict inverse) {
    for (int64_t i = 0; i < n; i++, x += d, y += d) {
        float sum = 0;
        #pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < d; k++) sum += x[k] * x[k];
        float r = 1 / __builtin_sqrtf(sum / d + eps);
        inverse[i] = r;
        #pragma omp simd
        for (int64_t k = 0; k < d; k++) y[k] = x[k] * r * weight[k];
    }
}

/* From given = dL/dy: grad = dL/dx [n][d] is written, grad_weight [d] is added to. */
void rms_backward(int64_t n, int64_t d, const float *restrict x, const float *restrict weight,
                  const float *restrict inverse, const float *restrict given,
                  float *restrict grad, float *restrict grad_weight) {
    for (int64_t i = 0; i < n; i++, x += d, given += d, grad += d) {
        float r = inverse[i], dot = 0;
        #pragma omp simd reduction(+ : dot)
        for (int64_t k = 0; k < d; k++) dot += given[k] * weight[k] * x[k];
        float back = dot * r * r * r / d;
        #pragma omp simd
        for (int64_t k = 0; k < d; k++) {
            grad[k] = given[k] * weight[k] * r - x[k] * back;
            grad_weight[k] += given[k] * x[k] * r;
        }
    }
}
