// A machine and a text made up from seeds: what a planner's rounds would cost and bring. No clocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "dflash/round_planner.h"
#include "dflash/verifier.h"

namespace dflash::sim {

/// Uniform in [0, 1), the same on every platform.
class Dice {
  public:
    explicit Dice(std::uint64_t seed) : state_(seed) {}
    double roll() {
        std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
        z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
        return static_cast<double>((z ^ (z >> 31U)) >> 11U) * 0x1.0p-53;
    }

  private:
    std::uint64_t state_;
};

struct Machine {
    std::function<double(std::int32_t rows)> target = [](std::int32_t) { return 10.0; };  // ms
    double draft = 4.0;
    double rest = 0.1;  // per token
    double load = 1.0;
    double noise = 0.0;     // relative, uniform
    double outliers = 0.0;  // share of rounds that take 100 times as long
};

enum class Margins : std::uint8_t { honest, overconfident, lying };

/// What a drafter is worth on the present kind of text.
struct Skill {
    double accept = 0.7;   // mean acceptance of slot 1
    double fade = 0.0;     // less by this much per slot
    double spread = 0.2;   // how much tokens differ in difficulty
    double sibling = 0.4;  // share of the wrong ones whose token is among the siblings
    Margins margins = Margins::honest;
};

struct CopySkill {
    double offered = 0.0;  // share of rounds with a copy on offer, while none runs
    double right = 0.0;    // acceptance of each of its tokens
    std::int32_t match = 8;
    std::int32_t length = 24;
};

class World {
  public:
    static constexpr std::int32_t n_slots = 7;
    static constexpr std::int32_t top_k = 8;

    Machine machine;
    Skill skill;
    CopySkill copies;
    std::int32_t max_leaves = 1;
    bool tell_tokens = true;

    explicit World(std::uint64_t seed) : dice_(seed) {}

    [[nodiscard]] std::int32_t position() const { return position_; }
    [[nodiscard]] double plain_ms() const { return machine.load * (machine.target(1) + machine.rest); }

    /// Another text begins here.
    void begin_text() {
        position_ += 1000;
        copy_.clear();
    }

    [[nodiscard]] static llama_token truth(std::int32_t position) { return 10 * (position % 100000) + 1; }

    /// Draws the block at the present position.
    const DraftCandidates & draft();
    /// Draws the copy at the present position, if there is none yet.
    std::span<const llama_token> copy();
    [[nodiscard]] RoundView view();
    /// Verifies the tree: the outcome, with times drawn. Spans point into this object.
    RoundOutcome run(const RoundSource source, const DraftTree & tree, bool drafted);

    CostTable table(std::span<const std::int32_t> widths) const;

  private:
    Dice dice_;
    std::int32_t position_ = 0;
    DraftCandidates candidates_;
    std::vector<llama_token> copy_;
    std::int32_t copied_to_ = -1;
    std::int32_t match_ = 0;
    std::vector<DraftNode> verified_;
    std::vector<std::int32_t> accepted_;
    std::vector<llama_token> tokens_;
};

inline const DraftCandidates & World::draft() {
    candidates_.n_slots = n_slots;
    candidates_.top_k = top_k;
    candidates_.ids.assign(static_cast<std::size_t>(n_slots * top_k), 0);
    candidates_.log_probs.assign(candidates_.ids.size(), 0.0F);
    for (std::int32_t slot = 0; slot < n_slots; ++slot) {
        const double mean = std::clamp(skill.accept - skill.fade * slot, 0.0, 1.0);
        const double width = skill.spread * std::min(mean, 1.0 - mean) * 2.0;
        const double p = std::clamp(mean + width * (dice_.roll() - 0.5), 0.0, 1.0);
        const bool right = dice_.roll() < p;
        const bool sibling = dice_.roll() < skill.sibling;
        const auto rank = static_cast<std::int32_t>(1.0 + std::pow(dice_.roll(), 2.0) * (top_k - 1));
        double told = std::clamp(p, 0.02, 0.98);
        if (skill.margins == Margins::overconfident) {
            told = 1.0 - std::pow(1.0 - told, 2.5);
        } else if (skill.margins == Margins::lying) {
            told = 0.3 + 0.69 * dice_.roll();
        }
        const std::size_t first = static_cast<std::size_t>(slot) * top_k;
        double left = 1.0 - told;
        for (std::int32_t r = 0; r < top_k; ++r) {
            candidates_.ids[first + r] = -(1 + r + 10 * slot);
            candidates_.log_probs[first + r] = static_cast<float>(std::log(r == 0 ? told : left *= 0.5));
        }
        if (right || sibling) {
            candidates_.ids[first + (right ? 0 : rank)] = truth(position_ + 1 + slot);
        }
    }
    return candidates_;
}

inline std::span<const llama_token> World::copy() {
    if (copied_to_ != position_) {
        const bool runs = !copy_.empty();
        copy_.clear();
        if (runs || dice_.roll() < copies.offered) {
            match_ = runs ? std::min(64, match_) : copies.match;
            for (std::int32_t i = 0; i < copies.length; ++i) {
                copy_.push_back(dice_.roll() < copies.right ? truth(position_ + 1 + i) : -1000 - i);
            }
        }
        copied_to_ = position_;
    }
    return copy_;
}

inline RoundView World::view() {
    RoundView out;
    out.n_past = position_;
    out.max_nodes = 63;
    out.n_slots = n_slots;
    out.max_leaves = max_leaves;
    out.chain = copy();
    out.match_length = match_;
    out.n_sources = 1;
    out.n_agreeing = 1;
    return out;
}

inline RoundOutcome World::run(const RoundSource source, const DraftTree & tree, bool drafted) {
    verified_.assign(tree.nodes().begin(), tree.nodes().end());
    accepted_.clear();
    tokens_.clear();
    const Walk path = walk(
        tree, 1 << 20, [&](std::int32_t) { return truth(position_ + 1 + static_cast<std::int32_t>(accepted_.size())); },
        [&](llama_token) {
            accepted_.push_back(0);
            return false;
        });
    accepted_.clear();
    for (const std::int32_t row : path.kept_rows) {
        if (row > 0) {
            accepted_.push_back(row - 1);
        }
    }
    tokens_ = path.emitted;
    const auto emitted = static_cast<std::int32_t>(tokens_.size());
    const double outlier = dice_.roll() < machine.outliers ? 100.0 : 1.0;
    const auto noisy = [&](double ms) { return ms * machine.load * (1.0 + machine.noise * (dice_.roll() - 0.5)); };
    RoundOutcome out;
    out.source = source;
    out.n_past = position_;
    out.verified = verified_;
    out.accepted = accepted_;
    out.emitted = emitted;
    out.target_ms = outlier * noisy(machine.target(tree.size() + 1));
    out.draft_ms = drafted ? noisy(machine.draft) : 0.0;
    out.draft_slots = drafted ? n_slots : 0;
    out.total_ms = out.target_ms + out.draft_ms + noisy(machine.rest) * emitted;
    if (tell_tokens) {
        out.tokens = tokens_;
    }
    const bool went_on = !copy_.empty() && (emitted <= static_cast<std::int32_t>(copy_.size()))
                             ? copy_[static_cast<std::size_t>(emitted) - 1] == tokens_.back()
                             : !copy_.empty();
    if (!went_on) {
        copy_.clear();
    } else {
        match_ += emitted;
    }
    position_ += emitted;
    return out;
}

inline CostTable World::table(std::span<const std::int32_t> widths) const {
    CostTable out;
    for (const std::int32_t rows : widths) {
        out.widths.push_back({rows, machine.target(rows), 0.0});
    }
    out.draft_ms = machine.draft;
    out.draft_slots = n_slots;
    out.rest_ms = machine.rest;
    return out;
}

struct Tally {
    double ms = 0.0;
    double tokens = 0.0;
    [[nodiscard]] double rate() const { return tokens / ms; }
    void add(const Tally & other) {
        ms += other.ms;
        tokens += other.tokens;
    }
};

inline void count(Tally & tally, const RoundOutcome & outcome, const Machine & machine) {
    // Outliers are the machine's fault: they are shown to the planner, not counted against it.
    const double target = std::min(
        outcome.target_ms, 2.0 * machine.load * machine.target(static_cast<std::int32_t>(outcome.verified.size()) + 1));
    tally.ms += outcome.total_ms - outcome.target_ms + target;
    tally.tokens += outcome.emitted;
}

/// One round by the planner.
inline RoundOutcome play(World & world, RoundPlanner & planner) {
    const RoundView view = world.view();
    const RoundSource source = planner.choose(view);
    DraftTree tree;
    if (source == RoundSource::drafter) {
        tree = planner.plan(view, &world.draft());
    } else if (source == RoundSource::chain) {
        tree = planner.plan(view, nullptr);
    }
    const RoundOutcome outcome = world.run(source, tree, source == RoundSource::drafter);
    planner.observe(outcome);
    return outcome;
}

/// One round of a fixed number of drafted rows.
inline void play_fixed(World & world, std::int32_t nodes, Tally & tally) {
    world.copy();
    const DraftTree tree = nodes > 0 ? DraftTree::chain(world.draft(), nodes) : DraftTree();
    count(tally, world.run(nodes > 0 ? RoundSource::drafter : RoundSource::plain, tree, nodes > 0), world.machine);
}

}  // namespace dflash::sim
