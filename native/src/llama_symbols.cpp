// Looks up libllama's undeclared exports by their mangled names and says which one is missing.
#include "dflash/llama_symbols.h"

#include <array>
#include <initializer_list>
#include <string_view>

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include "dflash/error.h"

namespace dflash::llama_symbols {

namespace {

// Mangled names: Itanium (the first with libstdc++'s ABI tag, the second without), then MSVC.
struct Symbol {
    const char * plain;
    std::array<const char *, 3> mangled;
};

constexpr Symbol tensor_map_symbol{
    "llama_internal_get_tensor_map",
    {"_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model", "_Z29llama_internal_get_tensor_mapPK11llama_model",
     "?llama_internal_get_tensor_map@@YAAEBV?$vector@U?$pair@V?$basic_string@DU?$char_traits@D@std@@V?$allocator@D@2@@"
     "std@@PEAUggml_tensor@@@std@@V?$allocator@U?$pair@V?$basic_string@DU?$char_traits@D@std@@V?$allocator@D@2@@std@@"
     "PEAUggml_tensor@@@std@@@2@@std@@PEBUllama_model@@@Z"}};
constexpr Symbol set_layer_inp_symbol{"llama_set_embeddings_layer_inp",
                                      {"_Z30llama_set_embeddings_layer_inpP13llama_contextjb", nullptr,
                                       "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z"}};
constexpr Symbol get_layer_inp_symbol{"llama_get_embeddings_layer_inp",
                                      {"_Z30llama_get_embeddings_layer_inpP13llama_contextj", nullptr,
                                       "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z"}};

// The libllama whose declared functions we call: the one to search, whatever else is mapped.
void * library() {
#ifdef _WIN32
    return GetModuleHandleA("llama.dll");
#else
    Dl_info info{};
    if (dladdr(reinterpret_cast<void *>(&llama_model_n_embd), &info) == 0) {
        return RTLD_DEFAULT;
    }
    void * const handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return handle != nullptr ? handle : RTLD_DEFAULT;
#endif
}

void * find(const Symbol & symbol) {
    static void * const handle = library();
    for (const char * name : symbol.mangled) {
        if (name == nullptr) {
            continue;
        }
#ifdef _WIN32
        void * const address = reinterpret_cast<void *>(GetProcAddress(static_cast<HMODULE>(handle), name));
#else
        void * const address = dlsym(handle, name);
#endif
        if (address != nullptr) {
            return address;
        }
    }
    return nullptr;
}

template <typename Function>
Function require(const Symbol & symbol) {
    void * const address = find(symbol);
    if (address == nullptr) {
        throw Error(ErrorCode::unsupported,
                    std::string("this llama.cpp does not export ") + symbol.plain +
                        "; expected the library of llama-cpp-python 0.3.36: reinstall that version",
                    symbol.plain);
    }
    return reinterpret_cast<Function>(address);
}

}  // namespace

std::vector<std::string> missing() {
    std::vector<std::string> names;
    for (const Symbol & symbol : {tensor_map_symbol, set_layer_inp_symbol, get_layer_inp_symbol}) {
        if (find(symbol) == nullptr) {
            names.emplace_back(symbol.plain);
        }
    }
    return names;
}

const TensorMap & model_tensors(const llama_model * model) {
    using Function = const TensorMap & (*)(const llama_model *);
    static const auto function = require<Function>(tensor_map_symbol);
    return function(model);
}

void set_embeddings_layer_inp(llama_context * ctx, std::uint32_t layer, bool enabled) {
    using Function = void (*)(llama_context *, std::uint32_t, bool);
    static const auto function = require<Function>(set_layer_inp_symbol);
    function(ctx, layer, enabled);
}

const float * get_embeddings_layer_inp(llama_context * ctx, std::uint32_t layer) {
    using Function = float * (*)(llama_context *, std::uint32_t);
    static const auto function = require<Function>(get_layer_inp_symbol);
    return function(ctx, layer);
}

}  // namespace dflash::llama_symbols
