# How the pieces of the project are compiled: warnings, hardening, sanitizers, one function
# per kind of target.
include(CheckCCompilerFlag)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)

# Settings that all targets of this project share.
add_library(syncguard_settings INTERFACE)
target_include_directories(syncguard_settings INTERFACE ${CMAKE_SOURCE_DIR}/include)
target_compile_definitions(syncguard_settings INTERFACE _GNU_SOURCE)
target_compile_options(syncguard_settings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
  -Wwrite-strings -Wvla -Wundef -Wformat=2 -fno-common -fstack-protector-strong)
target_link_options(syncguard_settings INTERFACE LINKER:-z,relro LINKER:-z,now)
foreach(flag -fstack-clash-protection -fcf-protection)
  string(MAKE_C_IDENTIFIER has${flag} known)
  check_c_compiler_flag(${flag} ${known})
  if(${known})
    target_compile_options(syncguard_settings INTERFACE ${flag})
  endif()
endforeach()
# The checks of glibc need an optimizing compiler, and hide errors from the sanitizers. Some compilers set a
# level of their own, so it is unset first.
if(NOT SYNCGUARD_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_options(syncguard_settings INTERFACE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
endif()
# Files that are built do not depend on the folder of the sources or of the build: debug information and
# __FILE__ have relative names. The last option that matches counts, and the build folder may be inside the other.
target_compile_options(syncguard_settings INTERFACE
  -ffile-prefix-map=${CMAKE_SOURCE_DIR}=. -ffile-prefix-map=${CMAKE_BINARY_DIR}=build)
target_link_libraries(syncguard_settings INTERFACE Threads::Threads)
if(SYNCGUARD_SANITIZE)
  target_compile_options(syncguard_settings INTERFACE
    -fsanitize=${SYNCGUARD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(syncguard_settings INTERFACE -fsanitize=${SYNCGUARD_SANITIZE})
  target_compile_definitions(syncguard_settings INTERFACE SYNCGUARD_CHECKED) # src/util/check.h
endif()

set(SYNCGUARD_ABI_MAJOR 0)
file(STRINGS ${CMAKE_SOURCE_DIR}/include/syncguard/sys/module.h abi REGEX "define SYNCGUARD_ABI ")
string(REGEX REPLACE ".* " "" SYNCGUARD_ABI "${abi}")

# syncguard_exports(TARGET PUBLIC SYS): gives the shared library a version script. PUBLIC and SYS are the names of its
# symbols for applications and for authors of backends; nothing else is exported. The node of the latter has the
# number that modules are checked against, so that the loader refuses a core of another number.
function(syncguard_exports target public sys)
  list(JOIN public ";\n  " PUBLIC_SYMBOLS)
  list(JOIN sys ";\n  " SYS_SYMBOLS)
  set(map ${CMAKE_CURRENT_BINARY_DIR}/${target}.map)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/library.map.in ${map} @ONLY)
  target_link_options(${target} PRIVATE LINKER:--version-script=${map})
  set_property(TARGET ${target} PROPERTY LINK_DEPENDS ${map})
endfunction()

# syncguard_declared(VARIABLE headers...): the names that headers declare with SYNCGUARD_API.
function(syncguard_declared variable)
  set(names "")
  foreach(header ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
    file(READ ${header} text)
    string(REGEX MATCHALL "SYNCGUARD_API [^;(]*[ *\n]syncguard_[a-z0-9_]+\\(" declarations "${text}")
    list(TRANSFORM declarations REPLACE "(.|\n)*[ *\n](syncguard_[a-z0-9_]+)\\($" "\\2")
    list(APPEND names ${declarations})
  endforeach()
  set(${variable} ${names} PARENT_SCOPE)
endfunction()

# syncguard_library(NAME sources...): lib<NAME>.so and lib<NAME>.a (target NAME and NAME_static). Both consist of the
# same objects (target NAME_objects), so that each source is compiled once.
function(syncguard_library name)
  add_library(${name}_objects OBJECT ${ARGN})
  target_link_libraries(${name}_objects PRIVATE syncguard_settings)
  add_library(${name} SHARED $<TARGET_OBJECTS:${name}_objects>)
  add_library(${name}_static STATIC $<TARGET_OBJECTS:${name}_objects>)
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
  syncguard_declared(public ${CMAKE_SOURCE_DIR}/include/syncguard/${name}.h)
  syncguard_exports(syncguard-${name} "${public}" syncguard_module_${name})
  set_property(GLOBAL APPEND PROPERTY SYNCGUARD_BACKENDS ${name})
endfunction()

# syncguard_depend(TARGET dependencies...): links both forms of a library to imported targets, and
# remembers them for the .pc file and the CMake package (cmake/Install.cmake).
function(syncguard_depend name)
  target_link_libraries(${name}_objects PRIVATE ${ARGN})
  target_link_libraries(${name} PRIVATE ${ARGN})
  target_link_libraries(${name}_static PUBLIC ${ARGN})
  set_property(GLOBAL APPEND PROPERTY SYNCGUARD_DEPENDS_${name} ${ARGN})
endfunction()

# syncguard_find(RESULT modules...): pkg-config modules as PkgConfig::RESULT; sets RESULT_FOUND.
macro(syncguard_find result)
  set_property(GLOBAL PROPERTY SYNCGUARD_MODULES_${result} ${ARGN})
  if(SYNCGUARD_REQUIRE_ALL)
    pkg_check_modules(${result} REQUIRED IMPORTED_TARGET ${ARGN})
  else()
    pkg_check_modules(${result} IMPORTED_TARGET ${ARGN})
  endif()
endmacro()

# syncguard_long(TEST...): repetitions, soaks and searches that `make test` leaves to `make nightly`.
function(syncguard_long)
  foreach(name ${ARGN})
    set_property(TEST ${name} APPEND PROPERTY LABELS long)
  endforeach()
endfunction()

# syncguard_busy(TEST...): keeps a processor busy. run-tests.sh starts six tests per processor, because most
# of them wait most of the time.
function(syncguard_busy)
  set_tests_properties(${ARGN} PROPERTIES PROCESSORS 6)
endfunction()

# syncguard_early(TEST...): takes 20 seconds or more, and so starts before the others.
function(syncguard_early)
  set_tests_properties(${ARGN} PROPERTIES COST 20)
endfunction()

# syncguard_test(NAME [SOURCES ...] [LINK ...] [TIMEOUT s] [LABELS ...] [ARGS ...])
# A cmocka program that sees the internals through the static libraries. It has the helpers of tests/support.
function(syncguard_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;LINK;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE syncguard_settings test_support ${T_LINK} PkgConfig::CMOCKA)
  add_test(NAME ${name} COMMAND ${name} ${T_ARGS})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}")
endfunction()
