option(CAIRN_BUILD_TESTS "Build the tests" OFF)
option(CAIRN_BUILD_BENCH "Build the benchmarks" OFF)
option(CAIRN_UNITY "Compile a dozen sources of a target at once, in a third of the time" ON)
option(CAIRN_CORE_ONLY "Only the layers below the server, and their tests" OFF)
option(CAIRN_CLIENTS "Programs that call a server, and the tests that need them" ON)
option(CAIRN_PLANTED_BUGS "Simulations with planted bugs; the sources of the bugs are compiled one by one" OFF)
set(CAIRN_SANITIZE "" CACHE STRING "Sanitizer to build with: empty, address (with undefined), thread or fuzzer")
set_property(CACHE CAIRN_SANITIZE PROPERTY STRINGS "" address thread fuzzer)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
                    -Wnon-virtual-dtor -Woverloaded-virtual)
# Debian 12's compiler, which CI has. Newer ones warn of more, and that must not keep anybody from building.
if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13 OR CAIRN_SANITIZE)
  add_compile_options(-Werror)
endif()
# g++ 12 sees an overlap in `"text" + std::to_string(n)` at -O3 that cannot be (its PR 105651).
add_compile_options("$<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>")
# Debug sections are most of the bytes that the linker and ccache move; lines are enough for a trace.
add_compile_options("$<$<CONFIG:Debug,RelWithDebInfo>:-g1>")

if(CAIRN_SANITIZE)
  # At -O2 a source of the server takes asan and UBSan half as long again (92 s, 59 s).
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -DNDEBUG")
endif()
if(CAIRN_SANITIZE STREQUAL "address")
  # Instrumented code looks to g++ 12 as if it read a variant's other member. With calls in the place of inline checks a
  # batch of the core's sources takes 39 s instead of 47.
  add_compile_options(-fsanitize=address -fno-omit-frame-pointer -Wno-maybe-uninitialized
                      "$<$<CXX_COMPILER_ID:GNU>:SHELL:--param asan-instrumentation-with-call-threshold=0>")
  add_link_options(-fsanitize=address,undefined)
elseif(CAIRN_SANITIZE STREQUAL "thread")
  # g++ warns that tsan does not model atomic_thread_fence, which Asio's headers use.
  add_compile_options(-fsanitize=thread -Wno-tsan)
  add_link_options(-fsanitize=thread)
elseif(CAIRN_SANITIZE STREQUAL "fuzzer")
  # clang's libFuzzer: edges are counted everywhere, the main function comes with each target. What clang
  # 14 warns of beyond g++ is for clang-tidy to say.
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -Wno-error)
  add_link_options(-fsanitize=address,undefined)
elseif(NOT CAIRN_SANITIZE STREQUAL "")
  message(FATAL_ERROR "CAIRN_SANITIZE is '${CAIRN_SANITIZE}'; it takes nothing, 'address', 'thread' or 'fuzzer'")
endif()
