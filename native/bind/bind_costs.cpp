// Measured costs: the engine's timings, and tables of them as Python dicts, checked.
#include "cost_dict.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "dflash/error.h"
#include "engine_handle.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dflash::bind {

namespace {

constexpr std::size_t max_widths = 256;
constexpr std::int32_t max_count = 1 << 16;

[[noreturn]] void refuse(const char * key, const std::string & expected) {
    throw Error(ErrorCode::invalid_argument, std::string("cost table: ") + key + " is not " + expected, key);
}

nb::handle item(const nb::dict & dict, const char * key) {
    if (!dict.contains(key)) {
        refuse(key, "there");
    }
    return dict[key];
}

double milliseconds(const nb::dict & dict, const char * key) {
    const nb::object value = nb::borrow(item(dict, key));
    const bool whole = nb::isinstance<nb::int_>(value) && !PyBool_Check(value.ptr());
    const double ms = whole || nb::isinstance<nb::float_>(value) ? PyFloat_AsDouble(value.ptr()) : -1.0;
    if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();  // an integer too large for a double
        refuse(key, "a number of milliseconds");
    }
    if (!std::isfinite(ms) || ms < 0.0) {
        refuse(key, "a number of milliseconds, 0 or more");
    }
    return ms;
}

std::int32_t count(const nb::dict & dict, const char * key, std::int32_t least) {
    const nb::object value = nb::borrow(item(dict, key));
    int overflow = 0;
    const bool whole = nb::isinstance<nb::int_>(value) && !PyBool_Check(value.ptr());
    const long long n = whole ? PyLong_AsLongLongAndOverflow(value.ptr(), &overflow) : -1;
    if (overflow != 0 || n < least || n > max_count) {
        refuse(key, "a whole number, " + std::to_string(least) + " to " + std::to_string(max_count));
    }
    return static_cast<std::int32_t>(n);
}

}  // namespace

nb::dict cost_dict(const CostTable & table) {
    nb::list widths;
    for (const WidthCost & width : table.widths) {
        nb::dict entry;
        entry["rows"] = width.rows;
        entry["base_ms"] = width.base_ms;
        entry["slope_ms"] = width.slope_ms;
        widths.append(entry);
    }
    nb::dict out;
    out["widths"] = widths;
    out["draft_ms"] = table.draft_ms;
    out["draft_slot_ms"] = table.draft_slot_ms;
    out["draft_slots"] = table.draft_slots;
    out["rest_ms"] = table.rest_ms;
    out["leaf_ms"] = table.leaf_ms;
    return out;
}

CostTable cost_table(const nb::dict & dict) {
    CostTable table;
    const nb::object widths = nb::borrow(item(dict, "widths"));
    if (!nb::isinstance<nb::list>(widths) || nb::len(widths) > max_widths) {
        refuse("widths", "a list of at most " + std::to_string(max_widths) + " widths");
    }
    for (const nb::handle entry : nb::cast<nb::list>(widths)) {
        if (!nb::isinstance<nb::dict>(entry)) {
            refuse("widths", "a list of dicts");
        }
        const auto fields = nb::cast<nb::dict>(entry);
        table.widths.push_back(
            {count(fields, "rows", 1), milliseconds(fields, "base_ms"), milliseconds(fields, "slope_ms")});
    }
    table.draft_ms = milliseconds(dict, "draft_ms");
    table.draft_slot_ms = milliseconds(dict, "draft_slot_ms");
    table.draft_slots = count(dict, "draft_slots", 0);
    table.rest_ms = milliseconds(dict, "rest_ms");
    table.leaf_ms = milliseconds(dict, "leaf_ms");
    CostModel().set_table(table);  // order, and times that must be positive
    return table;
}

void init_costs(nb::module_ & m) {
    m.def("check_costs", [](const nb::dict & table) { return cost_dict(cost_table(table)); }, "table"_a);
    nb::borrow<nb::class_<EngineHandle>>(nb::type<EngineHandle>())
        .def(
            "time_batch",
            [](EngineHandle & self, std::int32_t n_rows) {
                return self.without_gil([&] { return self.get().time_batch(n_rows); });
            },
            "n_rows"_a)
        .def(
            "time_costs",
            [](EngineHandle & self, double budget_ms) {
                return cost_dict(self.without_gil([&] { return self.get().time_costs(budget_ms); }));
            },
            "budget_ms"_a)
        .def(
            "set_costs",
            [](EngineHandle & self, const nb::dict & table) {
                self.exclusive([&] { self.get().costs().set_table(cost_table(table)); });
            },
            "table"_a)
        .def("costs", [](EngineHandle & self) { return cost_dict(self.get().costs().table()); });
}

}  // namespace dflash::bind
