# Everything comes from the distribution's packages; `./run packages` lists them.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
# Its packages accept no other minor version than the one that is asked for.
find_package(simdjson REQUIRED)
if(simdjson_VERSION VERSION_LESS 3.0)
  message(FATAL_ERROR "simdjson is ${simdjson_VERSION}; it must be 3.0 or newer")
endif()

find_library(NUMA_LIBRARY numa REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
find_library(ZSTD_LIBRARY zstd REQUIRED)
find_library(HIREDIS_LIBRARY hiredis REQUIRED)
find_package(CURL 7.88 REQUIRED)
find_package(EXPAT REQUIRED)
find_library(PROMETHEUS_CORE_LIBRARY prometheus-cpp-core REQUIRED)

# Debian's xxhash chooses AVX2 or AVX-512 when it runs, behind a header of its own: four times as
# fast as the SSE2 that every x86-64 has. A build of it for another processor has no such header.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES ${XXHASH_LIBRARY})
check_cxx_source_compiles(
  "#include <xxh_x86dispatch.h>
   int main() { return static_cast<int>(XXH3_64bits_withSeed_dispatch(\"\", 0, 0)); }"
  CAIRN_XXHASH_DISPATCHES)
unset(CMAKE_REQUIRED_LIBRARIES)
if(CAIRN_XXHASH_DISPATCHES)
  set(CAIRN_XXHASH_HEADER xxh_x86dispatch.h)
else()
  set(CAIRN_XXHASH_HEADER xxhash.h)
endif()

include(cmake/cuda.cmake)

if(CAIRN_BUILD_TESTS)
  find_package(GTest 1.12 REQUIRED)
  include(GoogleTest)
endif()
if(CAIRN_BUILD_BENCH)
  find_package(benchmark 1.7 REQUIRED)
endif()
