// Entry of the Python module: declares and calls the init_* functions, one per topic.
#include <nanobind/nanobind.h>

namespace dflash::bind {
void init_errors(nanobind::module_ & m);
}  // namespace dflash::bind

NB_MODULE(_native, m) {
    dflash::bind::init_errors(m);
}
