# Where `make install` puts the files: headers, both forms of every library, .pc files, the CMake
# package, the contract suite, man pages, the command and its completions. Modules are next to libsyncguard, which looks
# for them there.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/SyncGuard)
get_property(backends GLOBAL PROPERTY SYNCGUARD_BACKENDS)

# The headers of backends that were not built are not installed.
install(FILES include/syncguard.h include/syncguard.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/syncguard DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp"
  PATTERN "syncguard/sqlite.h" EXCLUDE PATTERN "syncguard/redis.h" EXCLUDE
  PATTERN "syncguard/postgres.h" EXCLUDE PATTERN "syncguard/firestore.h" EXCLUDE)
foreach(backend ${backends})
  if(EXISTS ${CMAKE_SOURCE_DIR}/include/syncguard/${backend}.h)
    install(FILES include/syncguard/${backend}.h
      DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/syncguard)
  endif()
endforeach()

# The contract suite, as sources: authors of other backends build it against their cmocka (docs/adr/0062).
set(contract_dir ${CMAKE_INSTALL_DATADIR}/syncguard/contract)
file(GLOB suite CONFIGURE_DEPENDS tests/contract/test_*.c)
install(FILES ${suite} tests/contract/main.c tests/contract/support.c tests/contract/contract.h
  tests/support/test_support.c tests/support/test_support.h tests/support/test_assert.c tests/support/test_assert.h
  DESTINATION ${contract_dir})

# The relative path from a .pc file to the prefix, so that an installed tree can be moved as a whole.
file(RELATIVE_PATH up_from_pc "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" up_from_pc "${up_from_pc}")

# install_pc(LIBRARY DESCRIPTION REQUIRES): LIBRARY.pc; the needs of the archive are private.
function(install_pc library description requires)
  get_property(depends GLOBAL PROPERTY SYNCGUARD_DEPENDS_${library})
  set(modules "")
  set(libs "")
  foreach(depend ${depends})
    if(depend MATCHES "^PkgConfig::(.*)$")
      get_property(found GLOBAL PROPERTY SYNCGUARD_MODULES_${CMAKE_MATCH_1})
      list(APPEND modules ${found})
    elseif(depend STREQUAL "Threads::Threads")
      string(APPEND libs " -pthread")
    elseif(NOT depend MATCHES "::")
      string(APPEND libs " -l${depend}")
    endif()
  endforeach()
  list(TRANSFORM modules REPLACE "(>=|<=|=)" " \\1 ")
  list(JOIN modules ", " PC_REQUIRES_PRIVATE)
  set(PC_NAME ${library})
  set(PC_DESCRIPTION "${description}")
  set(PC_REQUIRES "${requires}")
  set(PC_LIBS_PRIVATE "${libs}")
  set(PC_UP ${up_from_pc})
  set(PC_VARIABLES "")
  if(library STREQUAL "syncguard") # the folder of third-party modules, and the suite that tests them
    set(PC_VARIABLES "moduledir=\${libdir}\ncontractdir=\${prefix}/${contract_dir}\n")
  endif()
  configure_file(cmake/library.pc.in ${CMAKE_BINARY_DIR}/${library}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/${library}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# install_library(LIBRARY NAME): both forms, each in an export set of its own, so that a program
# that wants one backend needs the dependencies of no other.
function(install_library library name)
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${name} INSTALL_RPATH "$ORIGIN")
  set_target_properties(${library}_static PROPERTIES EXPORT_NAME ${name}_static)
  foreach(form ${name} ${name}_static)
    if(form STREQUAL name)
      set(target ${library})
    else()
      set(target ${library}_static)
    endif()
    install(TARGETS ${target} EXPORT SyncGuard-${form}
      LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT SyncGuard-${form} NAMESPACE SyncGuard:: DESTINATION ${package_dir}
      FILE SyncGuard-${form}.cmake)
  endforeach()
endfunction()

# The dependencies that the CMake package must find again before it offers the static form of NAME.
set(PACKAGE_NEEDS "")
function(note_needs library name)
  get_property(depends GLOBAL PROPERTY SYNCGUARD_DEPENDS_${library})
  set(needs "")
  foreach(depend ${depends})
    if(depend MATCHES "^PkgConfig::(.*)$")
      get_property(modules GLOBAL PROPERTY SYNCGUARD_MODULES_${CMAKE_MATCH_1})
      string(APPEND needs "_syncguard_need(${name} ${CMAKE_MATCH_1} ${modules})\n")
    endif()
  endforeach()
  string(REPLACE ";" " " needs "${needs}")
  set(PACKAGE_NEEDS "${PACKAGE_NEEDS}${needs}" PARENT_SCOPE)
endfunction()

install_library(syncguard syncguard)
install_pc(syncguard "Locks between processes and machines" "")
note_needs(syncguard syncguard)
foreach(backend ${backends})
  install_library(syncguard-${backend} ${backend})
  install_pc(syncguard-${backend} "SyncGuard's ${backend} backend"
    "syncguard = ${PROJECT_VERSION}")
  note_needs(syncguard-${backend} ${backend})
endforeach()

list(JOIN backends " " PACKAGE_BACKENDS)
configure_package_config_file(cmake/SyncGuardConfig.cmake.in
  ${CMAKE_BINARY_DIR}/SyncGuardConfig.cmake INSTALL_DESTINATION ${package_dir}
  PATH_VARS CMAKE_INSTALL_LIBDIR contract_dir)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/SyncGuardConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/SyncGuardConfig.cmake
  ${CMAKE_BINARY_DIR}/SyncGuardConfigVersion.cmake DESTINATION ${package_dir})

if(TARGET syncguard-cli)
  # The command finds the libraries of its own tree wherever the tree is; the second path is for
  # the build folder, see BUILD_WITH_INSTALL_RPATH.
  file(RELATIVE_PATH lib_from_bin "/prefix/${CMAKE_INSTALL_BINDIR}"
    "/prefix/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(syncguard-cli PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_from_bin};$ORIGIN")
  install(TARGETS syncguard-cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # Where bash, zsh and fish look for completions of installed programs.
  install(FILES completions/syncguard.bash RENAME syncguard
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES completions/_syncguard DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES completions/syncguard.fish
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()

foreach(section 1 3 5 7)
  file(GLOB pages CONFIGURE_DEPENDS docs/man/*.${section})
  if(pages)
    install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
  endif()
endforeach()
