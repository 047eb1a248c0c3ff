// Entry of the Python module: declares and calls the init_* functions, one per topic.
#include <nanobind/nanobind.h>

namespace dflash::bind {
void require_one_libllama();
void init_errors(nanobind::module_ & m);
void init_tune(nanobind::module_ & m);
void init_drafter(nanobind::module_ & m);
void init_engine(nanobind::module_ & m);
void init_costs(nanobind::module_ & m);
void init_gguf(nanobind::module_ & m);
void init_ahead(nanobind::module_ & m);
void init_planner(nanobind::module_ & m);
}  // namespace dflash::bind

NB_MODULE(_native, m) {
    dflash::bind::require_one_libllama();
    dflash::bind::init_errors(m);
    dflash::bind::init_tune(m);
    dflash::bind::init_drafter(m);
    dflash::bind::init_engine(m);
    dflash::bind::init_costs(m);  // adds to Engine
    dflash::bind::init_gguf(m);
    dflash::bind::init_ahead(m);
    dflash::bind::init_planner(m);  // adds to Engine
}
