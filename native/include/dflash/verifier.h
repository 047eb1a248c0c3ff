// Exact-match verification: lays a draft tree out as a target batch and walks it with the user's sampler. Pure.
#pragma once

#include <llama.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "dflash/draft_tree.h"
#include "dflash/llama_bridge.h"

namespace dflash {

/// Row 0 is the anchor at `pos`, row i + 1 is node i at `pos` + its depth; all rows ask for logits.
[[nodiscard]] std::vector<Row> verify_rows(const DraftTree & tree, llama_token anchor, llama_pos pos);

struct Walk {
    std::vector<llama_token> emitted;     // one per sampled row; all but the last were drafted
    std::vector<std::int32_t> kept_rows;  // rows on the accepted path, the anchor's first; as many as `emitted`
};

/// Draws one token of the target at each node from the anchor on: a child that carries it is accepted and the walk goes
/// on there; else the token is emitted and the walk ends. It also ends after `max_emit` tokens and after a token for
/// which `ends` is true. Whatever was drafted, the law of the output is that of plain sampling.
[[nodiscard]] Walk walk(const DraftTree & tree, std::int32_t max_emit,
                        const std::function<llama_token(std::int32_t row)> & sample,
                        const std::function<bool(llama_token)> & ends);

}  // namespace dflash
