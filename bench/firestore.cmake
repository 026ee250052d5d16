# bench-firestore: the figures of the Firestore backend, each on an emulator of its own.
if(TARGET syncguard-firestore)
  syncguard_find(CURL libcurl>=7.74)
  set(programs firestore_pair firestore_threads)
  foreach(program ${programs})
    add_executable(${program} EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/${program}.c)
    target_link_libraries(${program} PRIVATE syncguard_settings syncguard PkgConfig::CURL)
    add_dependencies(${program} syncguard-firestore)
  endforeach()
  set(with_emulator ${CMAKE_SOURCE_DIR}/tests/firestore/with-emulator)
  add_custom_target(bench-firestore
    COMMAND ${with_emulator} $<TARGET_FILE:firestore_pair>
    COMMAND ${with_emulator} $<TARGET_FILE:firestore_threads>
    DEPENDS ${programs} USES_TERMINAL)
endif()
