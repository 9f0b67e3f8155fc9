# Layers for programs of others: find_package(Cairn 0.3 COMPONENTS client memory layouts).
include(CMakePackageConfigHelpers)

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Cairn)

# cairn_component(NAME TARGETS targets... [WITHOUT patterns...])
# An export set of one component: its libraries as Cairn::..., and those headers of the folder NAME that
# match none of the patterns, which are its own affair.
function(cairn_component name)
  cmake_parse_arguments(ARG "" "" "TARGETS;WITHOUT" ${ARGN})
  foreach(target IN LISTS ARG_TARGETS)
    string(REPLACE "cairn_" "" short ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${short})
  endforeach()
  install(TARGETS ${ARG_TARGETS} EXPORT Cairn_${name} ARCHIVE COMPONENT dev)
  install(EXPORT Cairn_${name} NAMESPACE Cairn:: DESTINATION ${config_folder} COMPONENT dev)
  set(without)
  foreach(pattern IN LISTS ARG_WITHOUT)
    list(APPEND without PATTERN ${pattern} EXCLUDE)
  endforeach()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${name} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cairn COMPONENT dev
    FILES_MATCHING PATTERN *.hpp ${without})
endfunction()

cairn_component(base TARGETS cairn_base)
cairn_component(memory TARGETS cairn_memory
  WITHOUT "cuda_*" "copy_kernel*" "host_memory.hpp" "host_stream.hpp" "mapping.hpp")
cairn_component(layouts TARGETS cairn_layouts)
cairn_component(client TARGETS cairn_client cairn_net WITHOUT "response_reader.hpp" "wire.hpp")
install(FILES ${PROJECT_BINARY_DIR}/generated/base/version.hpp
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/cairn/base COMPONENT dev)

configure_package_config_file(CairnConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/CairnConfig.cmake
  INSTALL_DESTINATION ${config_folder} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change any interface.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/CairnConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/CairnConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/CairnConfigVersion.cmake
  DESTINATION ${config_folder} COMPONENT dev)
