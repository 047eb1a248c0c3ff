// Online logistic regression with a memory: a Gaussian over few weights that is updated by outcomes and sinks back.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace dflash {

constexpr double logit_bound = 6.0;

inline double logistic(double score) { return 1.0 / (1.0 + std::exp(-score)); }

/// log(p / (1 - p)) of p = exp(log_prob), bounded.
inline double logit_of_log(double log_prob) {
    const double lp = std::clamp(log_prob, -logit_bound, 0.0);
    const double others = -std::expm1(lp);
    return others < 1e-6 ? logit_bound : std::clamp(lp - std::log(others), -logit_bound, logit_bound);
}

/// Mean and covariance of N weights (an extended Kalman filter on the logistic likelihood). Several of them may add up
/// to one score; each then moves by its own share of the uncertainty.
template <std::size_t N>
class OnlineLogit {
  public:
    using Vector = std::array<double, N>;

    struct Prior {
        Vector mean{};
        Vector variance{};
        Vector memory{};  // share of its distance to the prior that a weight keeps per outcome, below 1
    };

    explicit OnlineLogit(const Prior & prior) : prior_(prior) { reset(); }

    void set_mean(const Vector & mean) {
        prior_.mean = mean;
        reset();
    }
    [[nodiscard]] const Vector & mean() const noexcept { return mean_; }
    [[nodiscard]] const Vector & prior_mean() const noexcept { return prior_.mean; }

    [[nodiscard]] double score(const Vector & x) const noexcept {
        double sum = 0.0;
        for (std::size_t i = 0; i < N; ++i) {
            sum += mean_[i] * x[i];
        }
        return sum;
    }

    /// Variance of the score.
    [[nodiscard]] double spread(const Vector & x) const noexcept {
        double sum = 0.0;
        for (std::size_t i = 0; i < N; ++i) {
            for (std::size_t j = 0; j < N; ++j) {
                sum += x[i] * covariance_[i][j] * x[j];
            }
        }
        return sum;
    }

    /// One outcome passed: the weights sink a little back to the prior and become less certain.
    void relax() noexcept {
        for (std::size_t i = 0; i < N; ++i) {
            mean_[i] = prior_.mean[i] + prior_.memory[i] * (mean_[i] - prior_.mean[i]);
            for (std::size_t j = 0; j < N; ++j) {
                covariance_[i][j] *= prior_.memory[i] * prior_.memory[j];
            }
            covariance_[i][i] += (1.0 - prior_.memory[i] * prior_.memory[i]) * prior_.variance[i];
        }
    }

    /// `error`: outcome less predicted probability; `curvature`: p (1 - p); `total`: spread of the whole score.
    void move(const Vector & x, double error, double curvature, double total) noexcept {
        Vector gain{};
        for (std::size_t i = 0; i < N; ++i) {
            for (std::size_t j = 0; j < N; ++j) {
                gain[i] += covariance_[i][j] * x[j];
            }
        }
        const double scale = 1.0 / (1.0 + curvature * total);
        for (std::size_t i = 0; i < N; ++i) {
            mean_[i] += gain[i] * error * scale;
            for (std::size_t j = 0; j < N; ++j) {
                covariance_[i][j] -= gain[i] * gain[j] * curvature * scale;
            }
        }
    }

  private:
    Prior prior_;
    Vector mean_{};
    std::array<Vector, N> covariance_{};

    void reset() {
        mean_ = prior_.mean;
        for (std::size_t i = 0; i < N; ++i) {
            covariance_[i] = {};
            covariance_[i][i] = prior_.variance[i];
        }
    }
};

/// Learns one outcome with the parts that add up to its score.
template <std::size_t N, std::size_t M>
void learn(OnlineLogit<N> & a, const std::array<double, N> & x, OnlineLogit<M> & b, const std::array<double, M> & y,
           bool outcome) {
    const double p = logistic(a.score(x) + b.score(y));
    const double total = a.spread(x) + b.spread(y);
    const double error = (outcome ? 1.0 : 0.0) - p;
    a.move(x, error, p * (1.0 - p), total);
    b.move(y, error, p * (1.0 - p), total);
    a.relax();
    b.relax();
}

template <std::size_t N>
void learn(OnlineLogit<N> & a, const std::array<double, N> & x, bool outcome) {
    const double p = logistic(a.score(x));
    a.move(x, (outcome ? 1.0 : 0.0) - p, p * (1.0 - p), a.spread(x));
    a.relax();
}

}  // namespace dflash
