# Everything comes from the distribution's packages; `./run packages` lists them.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
find_package(simdjson 3.0 REQUIRED)

find_library(NUMA_LIBRARY numa REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
find_library(ZSTD_LIBRARY zstd REQUIRED)
find_library(ZMQ_LIBRARY zmq REQUIRED)
find_library(HIREDIS_LIBRARY hiredis REQUIRED)
find_library(PROMETHEUS_CORE_LIBRARY prometheus-cpp-core REQUIRED)

include(cmake/cuda.cmake)

if(CAIRN_BUILD_TESTS)
  find_package(GTest 1.12 REQUIRED)
  include(GoogleTest)
endif()
if(CAIRN_BUILD_BENCH)
  find_package(benchmark 1.7 REQUIRED)
endif()
