// Maps dflash::Error to the Python exceptions of dflash_local._errors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <new>

#include "dflash/error.h"

namespace nb = nanobind;

namespace dflash::bind {

namespace {

const char * python_class(ErrorCode code) {
    switch (code) {
        case ErrorCode::invalid_argument: return nullptr;
        case ErrorCode::model_load: return "ModelLoadError";
        case ErrorCode::incompatible_drafter: return "IncompatibleDrafter";
        case ErrorCode::context_overflow: return "ContextOverflow";
        case ErrorCode::out_of_memory: return "OutOfMemory";
        case ErrorCode::cancelled: return "Cancelled";
        case ErrorCode::decode_failed: return "DecodeError";
        case ErrorCode::unsupported: return "Unsupported";
    }
    return "Error";
}

void raise_python(const Error & error) {
    const char * name = python_class(error.code());
    if (name == nullptr) {
        PyErr_SetString(PyExc_ValueError, error.what());
        return;
    }
    const nb::object type = nb::module_::import_("dflash_local._errors").attr(name);
    const nb::object exception = type(error.what(), error.field());
    PyErr_SetObject(type.ptr(), exception.ptr());
}

}  // namespace

void init_errors(nb::module_ & /*m*/) {
    nb::register_exception_translator([](const std::exception_ptr & pointer, void * /*payload*/) {
        try {
            std::rethrow_exception(pointer);
        } catch (const Error & error) {
            raise_python(error);
        } catch (const std::bad_alloc &) {
            raise_python(Error(ErrorCode::out_of_memory, "out of memory"));
        }
    });
}

}  // namespace dflash::bind
