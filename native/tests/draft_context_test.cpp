// The ring of draft K/V: intervals, cells, saving and restoring, and each refusal.
#include "dflash/draft_context.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "gguf_bytes.h"

using namespace dflash;
using namespace dflash::test;

namespace {

std::vector<std::int32_t> span_of(const RingInterval & ring) { return {ring.begin(), ring.end()}; }

void put(RingInterval & ring, std::int32_t pos0, std::int32_t n) {
    ring.evict(pos0, n);
    ring.commit(pos0, n);
}

constexpr KvLayout layout{
    .n_layer = 2, .n_embd_kv = 3, .block_size = 4, .capacity = 8, .type = GGML_TYPE_F16, .fingerprint = 7};

struct Contexts {
    std::shared_ptr<DraftDevice> device = std::make_shared<DraftDevice>(nullptr);
    std::shared_ptr<std::atomic<std::size_t>> bytes = std::make_shared<std::atomic<std::size_t>>(0);

    [[nodiscard]] RingContext make(const KvLayout & shape = layout) const { return {shape, device, bytes}; }
};

/// Fills every position of the ring with values that depend on layer, channel and position only.
void fill(RingContext & context, std::int32_t pos0, std::int32_t n) {
    context.interval().evict(pos0, n);
    for (std::size_t layer = 0; layer < context.kv().k.size(); ++layer) {
        for (std::int32_t pos = pos0; pos < pos0 + n; ++pos) {
            const auto cell = static_cast<std::size_t>(layout.block_size + context.interval().cell(pos));
            for (std::size_t channel = 0; channel < 3; ++channel) {
                const auto value =
                    static_cast<std::uint16_t>(1000 * layer + 100 * channel + static_cast<std::size_t>(pos));
                const auto value_v = static_cast<std::uint16_t>(value + 5000);
                ggml_backend_tensor_set(context.kv().k[layer], &value, cell * 6 + channel * 2, 2);
                ggml_backend_tensor_set(context.kv().v[layer], &value_v,
                                        channel * context.kv().v[layer]->nb[1] + cell * 2, 2);
            }
        }
    }
    context.interval().commit(pos0, n);
}

void check_refused(RingContext & context, const std::vector<std::byte> & bytes, const std::string & words) {
    const std::vector<std::byte> before = context.save();
    const auto error = error_of([&] { context.restore(bytes); });
    REQUIRE(error.has_value());
    CHECK(error->code() == ErrorCode::invalid_argument);
    const std::string message = error->what();
    CHECK_MESSAGE(message.find(words) != std::string::npos, message);
    CHECK(context.save() == before);
}

template <typename T>
std::vector<std::byte> with(std::vector<std::byte> bytes, std::size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    return bytes;
}

}  // namespace

TEST_CASE("the ring keeps the last `capacity` positions") {
    RingInterval ring(8);
    put(ring, 0, 5);
    CHECK(span_of(ring) == std::vector{0, 5});
    CHECK(ring.cells_in_use() == 5);
    put(ring, 5, 6);
    CHECK(span_of(ring) == std::vector{3, 11});
    CHECK(ring.cells_in_use() == 8);
    CHECK(ring.cell(3) == 3);
    CHECK(ring.cell(8) == 0);
    const auto runs = ring.runs();
    CHECK(runs[0].cell == 3);
    CHECK(runs[0].count == 5);
    CHECK(runs[0].pos == 3);
    CHECK(runs[1].cell == 0);
    CHECK(runs[1].count == 3);
    CHECK(runs[1].pos == 8);
}

TEST_CASE("a conversation that starts late starts in the first cell") {
    RingInterval ring(8);
    put(ring, 1000, 3);
    CHECK(ring.cell(1000) == 0);
    CHECK(ring.cells_in_use() == 3);
}

TEST_CASE("rewinding drops the end, below the beginning everything") {
    RingInterval ring(8);
    put(ring, 4, 6);
    ring.rewind(20);
    CHECK(span_of(ring) == std::vector{4, 10});
    ring.rewind(7);
    CHECK(span_of(ring) == std::vector{4, 7});
    ring.rewind(2);
    CHECK(span_of(ring) == std::vector{2, 2});
    CHECK(ring.cells_in_use() == 0);
    put(ring, 2, 1);
    CHECK(ring.cell(2) == 0);
}

TEST_CASE("a gap empties the ring, an overlap overwrites from there on") {
    RingInterval ring(8);
    put(ring, 0, 6);
    put(ring, 3, 2);
    CHECK(span_of(ring) == std::vector{0, 5});
    put(ring, 9, 2);
    CHECK(span_of(ring) == std::vector{9, 11});
    put(ring, 1, 2);
    CHECK(span_of(ring) == std::vector{1, 3});
    ring.clear();
    CHECK(span_of(ring) == std::vector{0, 0});
}

TEST_CASE("contexts count their memory") {
    const Contexts contexts;
    {
        const RingContext context = contexts.make();
        CHECK(*contexts.bytes == layout.bytes());
        const RingContext second = contexts.make();
        CHECK(*contexts.bytes == 2 * layout.bytes());
    }
    CHECK(*contexts.bytes == 0);
}

TEST_CASE("rewind refuses a negative position") {
    const Contexts contexts;
    RingContext context = contexts.make();
    CHECK(error_of([&] { context.rewind(-1); })->code() == ErrorCode::invalid_argument);
}

TEST_CASE("saved K/V comes back bit for bit, wrapped or not") {
    const Contexts contexts;
    for (const std::int32_t n_more : {0, 2, 6}) {
        RingContext context = contexts.make();
        fill(context, 10, 5);
        fill(context, 15, n_more);
        const std::vector<std::byte> bytes = context.save();
        RingContext other = contexts.make();
        other.restore(bytes);
        CHECK(other.begin() == context.begin());
        CHECK(other.end() == context.end());
        CHECK(other.save() == bytes);
        // A copy made from scratch has the same bytes: nothing but layer, channel and position decides them.
        RingContext fresh = contexts.make();
        fill(fresh, context.begin(), context.end() - context.begin());
        CHECK(fresh.save() == bytes);
    }
}

TEST_CASE("an empty context is saved and restored too") {
    const Contexts contexts;
    RingContext context = contexts.make();
    context.rewind(0);
    RingContext other = contexts.make();
    fill(other, 3, 4);
    other.restore(context.save());
    CHECK(other.begin() == other.end());
}

TEST_CASE("restore refuses foreign or damaged bytes and leaves the context as it was") {
    const Contexts contexts;
    RingContext context = contexts.make();
    fill(context, 2, 6);
    const std::vector<std::byte> good = context.save();
    fill(context, 8, 1);

    check_refused(context, {good.begin(), good.begin() + 10}, "shorter than its header");
    check_refused(context, with(good, 0, 'X'), "not a state of this version");
    check_refused(context, with<std::uint32_t>(good, 4, 99), "not a state of this version");
    check_refused(context, with<std::uint64_t>(good, 8, 8), "another drafter");
    check_refused(context, with<std::int32_t>(good, 16, 3), "another drafter");
    check_refused(context, with<std::int32_t>(good, 20, 4), "another drafter");
    check_refused(context, with<std::int32_t>(good, 24, GGML_TYPE_F32), "another drafter");
    check_refused(context, with<std::int32_t>(good, 28, -1), "do not fit");
    check_refused(context, with<std::int32_t>(good, 32, 1), "do not fit");
    check_refused(context, with<std::int32_t>(good, 32, 11), "do not fit");
    check_refused(context, with<std::int32_t>(good, 32, 7), "expected");
    check_refused(context, {good.begin(), good.end() - 1}, "expected");
}
