# How the pieces of the project are compiled: warnings, sanitizers, one function
# per kind of target.

# Settings that every target of ours shares.
add_library(syncguard_settings INTERFACE)
target_include_directories(syncguard_settings INTERFACE ${CMAKE_SOURCE_DIR}/include)
target_compile_definitions(syncguard_settings INTERFACE _GNU_SOURCE)
target_compile_options(syncguard_settings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
  -Wwrite-strings -Wvla -Wundef -Wformat=2 -fno-common -fstack-protector-strong)
target_link_libraries(syncguard_settings INTERFACE Threads::Threads)
if(SYNCGUARD_SANITIZE)
  target_compile_options(syncguard_settings INTERFACE
    -fsanitize=${SYNCGUARD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(syncguard_settings INTERFACE -fsanitize=${SYNCGUARD_SANITIZE})
endif()

set(SYNCGUARD_ABI_MAJOR 0)

# syncguard_library(NAME sources...): lib<NAME>.so and lib<NAME>.a (target NAME and NAME_static).
function(syncguard_library name)
  add_library(${name} SHARED ${ARGN})
  add_library(${name}_static STATIC ${ARGN})
  target_compile_definitions(${name}_static PRIVATE SYNCGUARD_STATIC)
  # The installed search path ($ORIGIN) also fits the build folder. Otherwise CMake pads the one of
  # the build folder with colons, and an empty part of it is the working directory.
  set_target_properties(${name} PROPERTIES VERSION ${PROJECT_VERSION}
    SOVERSION ${SYNCGUARD_ABI_MAJOR} BUILD_WITH_INSTALL_RPATH ON)
  set_target_properties(${name}_static PROPERTIES OUTPUT_NAME ${name})
  foreach(target ${name} ${name}_static)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:syncguard_settings>)
    target_include_directories(${target} PUBLIC
      $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
    set_target_properties(${target} PROPERTIES
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  endforeach()
endfunction()

# syncguard_backend(NAME sources...): a backend module, syncguard-NAME. Its dependencies are added
# by the caller to both targets with syncguard_depend.
function(syncguard_backend name)
  syncguard_library(syncguard-${name} ${ARGN})
  target_link_libraries(syncguard-${name} PUBLIC syncguard)
  target_link_libraries(syncguard-${name}_static PUBLIC syncguard_static)
  set_property(GLOBAL APPEND PROPERTY SYNCGUARD_BACKENDS ${name})
endfunction()

# syncguard_depend(TARGET dependencies...): links both forms of a library to imported targets, and
# remembers them for the .pc file and the CMake package (cmake/Install.cmake).
function(syncguard_depend name)
  target_link_libraries(${name} PRIVATE ${ARGN})
  target_link_libraries(${name}_static PUBLIC ${ARGN})
  set_property(GLOBAL APPEND PROPERTY SYNCGUARD_DEPENDS_${name} ${ARGN})
endfunction()

# syncguard_find(RESULT modules...): pkg-config modules as PkgConfig::RESULT; RESULT_FOUND tells.
macro(syncguard_find result)
  set_property(GLOBAL PROPERTY SYNCGUARD_MODULES_${result} ${ARGN})
  if(SYNCGUARD_REQUIRE_ALL)
    pkg_check_modules(${result} REQUIRED IMPORTED_TARGET ${ARGN})
  else()
    pkg_check_modules(${result} IMPORTED_TARGET ${ARGN})
  endif()
endmacro()

# syncguard_test(NAME [SOURCES ...] [LINK ...] [TIMEOUT s] [LABELS ...] [ARGS ...])
# A cmocka program that sees the internals through the static libraries.
function(syncguard_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;LINK;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE syncguard_settings ${T_LINK} PkgConfig::CMOCKA)
  add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}")
endfunction()
