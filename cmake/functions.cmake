# Sets how every target of ours is compiled: in unity, unless CAIRN_UNITY is off, and under UBSan where
# asan is on. Sources named after NO_UBSAN stay by themselves and without it: it costs minutes on Beast's
# templates.
#
# Most of a source's time goes to templates that its neighbours instantiate too (JSON, std::filesystem,
# gMock), which a precompiled header does not save: 12 sources at once take a third of the time.
function(cairn_compile target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${CAIRN_UNITY} UNITY_BUILD_BATCH_SIZE 12)
  if(CAIRN_UNITY)
    # g++ takes a source that is included for a header, whose classes may not hold what is local to it; and
    # a local name shadows nothing that only another source of the batch has.
    target_compile_options(${target} PRIVATE
      $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage$<SEMICOLON>-Wno-shadow$<SEMICOLON>-Wshadow=local>)
  endif()
  if(CAIRN_SANITIZE STREQUAL "address")
    # asan finds null pointers and the ends of objects by itself.
    target_compile_options(${target} PRIVATE
      -fsanitize=undefined -fno-sanitize=null,object-size -fno-sanitize-recover=all)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=undefined)
  endif()
endfunction()

# cairn_layer(NAME SOURCES... [LINK libraries...] [PRIVATE_LINK libraries...] [NO_UBSAN sources...])
# One layer of the program as a static library; the root of the tree is the include path, and installed
# include/cairn is.
function(cairn_layer name)
  cmake_parse_arguments(ARG "" "" "LINK;PRIVATE_LINK;NO_UBSAN" ${ARGN})
  add_library(cairn_${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_include_directories(cairn_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/cairn>)
  target_compile_features(cairn_${name} PUBLIC cxx_std_20)
  target_link_libraries(cairn_${name} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK} Threads::Threads)
  cairn_compile(cairn_${name} ${ARG_NO_UBSAN})
endfunction()

# cairn_program(NAME SOURCES... LINK libraries...)
function(cairn_program name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} Threads::Threads)
  cairn_compile(${name})
endfunction()

# cairn_test(NAME SOURCES... LINK libraries... [TIMEOUT seconds] [SERIAL])
# A GoogleTest program; every test case is a CTest test of its own, run side by side unless SERIAL.
function(cairn_test name)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "LINK" ${ARGN})
  # Seconds that no test needs, also under a sanitizer on a busy machine.
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  cairn_program(${name} ${ARG_UNPARSED_ARGUMENTS} LINK ${ARG_LINK} GTest::gmock GTest::gtest_main)
  # UBSan stays on in what is tested.
  target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  set(properties TIMEOUT ${ARG_TIMEOUT})
  if(ARG_SERIAL)
    list(APPEND properties RUN_SERIAL ON)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} PROPERTIES ${properties})
endfunction()

# cairn_fake_cuda_tests(TARGET [FILTER filter] [TIMEOUT seconds] [COST cost] [ENVIRONMENT NAME=value])
# Runs the tests of a GoogleTest program (those that the filter names) once more, with the fake
# libcudart in the place of NVIDIA's. Nothing where the toolkit is missing. The highest cost begins first.
function(cairn_fake_cuda_tests target)
  cmake_parse_arguments(ARG "" "FILTER;TIMEOUT;COST;ENVIRONMENT" "" ${ARGN})
  if(NOT CAIRN_CUDA)
    return()
  endif()
  if(NOT ARG_FILTER)
    set(ARG_FILTER "*")
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_COST)
    set(ARG_COST 0)
  endif()
  if(NOT ARG_ENVIRONMENT)
    set(ARG_ENVIRONMENT CAIRN_FAKE_CUDA_DEVICES=2)
  endif()
  add_dependencies(${target} cudart_fake)
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       TEST_FILTER ${ARG_FILTER} TEST_PREFIX fake_cuda. TEST_LIST ${target}_fake_cuda
                       WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                       PROPERTIES TIMEOUT ${ARG_TIMEOUT} COST ${ARG_COST} ENVIRONMENT ${ARG_ENVIRONMENT}
                       ENVIRONMENT_MODIFICATION
                         LD_LIBRARY_PATH=path_list_prepend:${CMAKE_BINARY_DIR}/fake-cudart)
endfunction()
