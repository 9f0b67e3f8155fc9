# CPack's Debian packages: `cairn` (programs, unit, settings) and `cairn-dev` (libraries and headers). For a
# build of the preset `package` only: the paths are those of /usr.
if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  return()
endif()
set(CAIRN_MAINTAINER "Cairn maintainers <cairn@example.org>" CACHE STRING "Who answers for the Debian packages")
set(here ${CMAKE_CURRENT_LIST_DIR})

# Changelogs and copyright as Debian wants them; the date is SOURCE_DATE_EPOCH where that is set.
set(debian_revision 1)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(notices ${CMAKE_CURRENT_BINARY_DIR}/deb)
configure_file(${here}/changelog.in ${notices}/changelog.Debian @ONLY)
file(COPY_FILE ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${notices}/changelog)
execute_process(COMMAND ${GZIP_PROGRAM} -9nf changelog changelog.Debian
  WORKING_DIRECTORY ${notices} COMMAND_ERROR_IS_FATAL ANY)
foreach(package IN ITEMS cairn cairn-dev)
  install(FILES ${here}/copyright ${notices}/changelog.gz ${notices}/changelog.Debian.gz
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT notices_${package} EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME cairn)
set(CPACK_PACKAGE_CONTACT ${CAIRN_MAINTAINER})
# Absolute paths (/etc) go below the staging folder too.
set(CPACK_SET_DESTDIR ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL programs settings notices_cairn dev notices_cairn-dev)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${debian_revision})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

set(CPACK_DEBIAN_SERVER_DESCRIPTION "KV-cache block manager for LLM serving engines
Cairn keeps the KV-cache blocks of LLM serving engines outside the engines:
in device memory, pinned host memory and on disk, behind a REST interface.

This package holds the server, its systemd unit, and its tools.")
set(CPACK_DEBIAN_SERVER_PACKAGE_NAME cairn)
set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION net)
set(CPACK_DEBIAN_SERVER_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_SERVER_PACKAGE_DEPENDS
  "systemd-standalone-sysusers | systemd-sysusers")
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS bash-completion)
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA
  ${here}/postinst ${here}/prerm ${here}/postrm ${here}/conffiles)

set(CPACK_DEBIAN_LIBRARIES_DESCRIPTION "KV-cache block manager for LLM serving engines (development)
Cairn keeps the KV-cache blocks of LLM serving engines outside the engines:
in device memory, pinned host memory and on disk, behind a REST interface.

This package holds static libraries and headers of its client, allocators
and block layouts, for find_package(Cairn) of CMake.")
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_NAME cairn-dev)
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_DEPENDS
  "libboost${Boost_VERSION_MAJOR}.${Boost_VERSION_MINOR}-dev, libnuma-dev, libssl-dev, libxxhash-dev, nlohmann-json3-dev")

include(CPack)
cpack_add_component_group(server)
cpack_add_component_group(libraries)
foreach(component IN ITEMS programs settings notices_cairn)
  cpack_add_component(${component} GROUP server)
endforeach()
foreach(component IN ITEMS dev notices_cairn-dev)
  cpack_add_component(${component} GROUP libraries)
endforeach()
