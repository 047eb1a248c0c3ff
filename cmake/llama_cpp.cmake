# Finds headers and libraries of the installed llama-cpp-python: targets dflash_llama_cpp and, of it, dflash_ggml_base;
# variable LLAMA_CPP_DIR.
# Results are not cached: under build isolation every build has its own copy at another path.

# The package is located, not imported: importing it would open the libraries.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
          "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('llama_cpp').origin).parent.as_posix())"
  OUTPUT_VARIABLE LLAMA_CPP_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE DFLASH_LOCATE_RESULT)
if(NOT DFLASH_LOCATE_RESULT EQUAL 0)
  message(FATAL_ERROR "llama_cpp is not installed for ${Python_EXECUTABLE}: pip install llama-cpp-python==0.3.36")
endif()
cmake_path(GET LLAMA_CPP_DIR PARENT_PATH DFLASH_SITE_PACKAGES)

set(DFLASH_REBUILD_HINT "pip install --force-reinstall --no-binary llama-cpp-python --no-cache-dir llama-cpp-python==0.3.36")

find_path(DFLASH_LLAMA_INCLUDE llama.h
          PATHS "${DFLASH_SITE_PACKAGES}/include" "${LLAMA_CPP_DIR}/include" NO_DEFAULT_PATH NO_CACHE)
if(NOT DFLASH_LLAMA_INCLUDE)
  message(FATAL_ERROR "llama.h is neither in ${DFLASH_SITE_PACKAGES}/include nor in ${LLAMA_CPP_DIR}/include: "
                      "llama-cpp-python was installed without its headers. Build it from source: ${DFLASH_REBUILD_HINT}")
endif()

add_library(dflash_llama_cpp INTERFACE)
target_include_directories(dflash_llama_cpp SYSTEM INTERFACE "${DFLASH_LLAMA_INCLUDE}")
foreach(lib IN ITEMS llama ggml ggml-base)
  find_library(DFLASH_LIB_${lib} NAMES ${lib} PATHS "${LLAMA_CPP_DIR}/lib" NO_DEFAULT_PATH NO_CACHE)
  if(NOT DFLASH_LIB_${lib})
    set(DFLASH_FILE "${CMAKE_SHARED_LIBRARY_PREFIX}${lib}${CMAKE_SHARED_LIBRARY_SUFFIX}")
    if(WIN32)
      set(DFLASH_FILE "the import library ${lib}.lib")
    endif()
    message(FATAL_ERROR "${DFLASH_FILE} is not in ${LLAMA_CPP_DIR}/lib. "
                        "Build llama-cpp-python from source, as shared libraries: ${DFLASH_REBUILD_HINT}")
  endif()
  target_link_libraries(dflash_llama_cpp INTERFACE "${DFLASH_LIB_${lib}}")
endforeach()
add_library(dflash_ggml_base INTERFACE)
target_include_directories(dflash_ggml_base SYSTEM INTERFACE "${DFLASH_LLAMA_INCLUDE}")
target_link_libraries(dflash_ggml_base INTERFACE "${DFLASH_LIB_ggml-base}")

if(DFLASH_REQUIRE_BACKEND)
  find_library(DFLASH_BACKEND_LIBRARY NAMES "ggml-${DFLASH_REQUIRE_BACKEND}"
               PATHS "${LLAMA_CPP_DIR}/lib" NO_DEFAULT_PATH NO_CACHE)
  if(NOT DFLASH_BACKEND_LIBRARY)
    string(TOUPPER "${DFLASH_REQUIRE_BACKEND}" DFLASH_BACKEND_UPPER)
    set(DFLASH_BACKEND_ARGS "-DGGML_${DFLASH_BACKEND_UPPER}=ON")
    if(CMAKE_CUDA_ARCHITECTURES)
      string(APPEND DFLASH_BACKEND_ARGS " -DCMAKE_CUDA_ARCHITECTURES=${CMAKE_CUDA_ARCHITECTURES}")
    endif()
    message(FATAL_ERROR "The installed llama_cpp has no ${DFLASH_REQUIRE_BACKEND} backend: "
                        "CMAKE_ARGS=\"${DFLASH_BACKEND_ARGS}\" ${DFLASH_REBUILD_HINT}")
  endif()
endif()
