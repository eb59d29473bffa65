/* Weights and biases of gamma-Lipschitz batch norms times min(1, gamma / steepest), and the gradients, for all layers of a network in
 * one call; float32. steepest = max |w_c| gain_c over a layer's channels. Optional like softplus.c; the formulas are those of
 * reference/scales.py.
 */
#include "loops.h"

#include <math.h>

/* Weights and biases, and what belongs to them, may be null. */
static inline float at(const float *values, long c) { return values ? values[c] : 1.0f; }

static float steepest(long channels, const float *gains, const float *weight) {
    float found = 0.0f;
    for (long c = 0; c < channels; c++) {
        float slope = gains[c] * fabsf(at(weight, c));
        if (slope > found) found = slope;
    }
    return found;
}

/* Every weight and bias times its layer's factor; gains = (variance + eps)^(-1/2), one layer after the other. gamma[i] is that of layer
 * i. */
void lowcurve_scales(long layers, int threads, const long *sizes, Given variances, Given weights, Given biases, const float *gamma,
                     const float *eps, Found scaled_weights, Found scaled_biases, float *gains, float *factors) {
    (void)threads;
    for (long i = 0; i < layers; gains += sizes[i], i++) {
        for (long c = 0; c < sizes[i]; c++) gains[c] = 1.0f / sqrtf(variances[i][c] + eps[i]);
        float steep = steepest(sizes[i], gains, weights[i]);
        float factor = steep > gamma[i] ? gamma[i] / steep : 1.0f;
        for (long c = 0; c < sizes[i]; c++) scaled_weights[i][c] = factor * at(weights[i], c);
        for (long c = 0; biases[i] && c < sizes[i]; c++) scaled_biases[i][c] = factor * biases[i][c];
        factors[i] = factor;
    }
}

/* For the gradients of what lowcurve_scales finds, those in weights, biases and log gamma; the steepest channels share what comes through
 * the factor. */
void lowcurve_scales_gradient(long layers, int threads, const long *sizes, Given grads, Given bias_grads, Given weights, Given biases,
                              const float *gains, const float *factors, Found in_weights, Found in_biases, float *in_log_gamma) {
    (void)threads;
    for (long i = 0; i < layers; gains += sizes[i], i++) {
        float factor = factors[i], steep = steepest(sizes[i], gains, weights[i]), ties = 0.0f;
        double through = 0.0;
        for (long c = 0; c < sizes[i]; c++) {
            through += (double)grads[i][c] * at(weights[i], c);
            if (biases[i]) through += (double)bias_grads[i][c] * biases[i][c];
            ties += gains[c] * fabsf(at(weights[i], c)) == steep;
        }
        int binds = factor < 1.0f;
        in_log_gamma[i] = binds ? (float)(through * factor) : 0.0f;
        float share = binds ? (float)(-through * factor / steep) / ties : 0.0f;
        for (long c = 0; weights[i] && c < sizes[i]; c++) {
            float w = weights[i][c], own = gains[c] * fabsf(w) == steep ? share * gains[c] : 0.0f;
            in_weights[i][c] = factor * grads[i][c] + (w > 0 ? own : w < 0 ? -own : 0.0f);
        }
        for (long c = 0; biases[i] && c < sizes[i]; c++) in_biases[i][c] = factor * bias_grads[i][c];
    }
}
