# bench-sqlite: all figures of the SQLite backend, in files below the build folder.
if(TARGET syncguard-sqlite)
  syncguard_find(SQLITE sqlite3>=3.35)
  set(programs sqlite_pair sqlite_handover sqlite_growth)
  set(files)
  foreach(program ${programs})
    add_executable(${program} EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/${program}.c)
    target_link_libraries(${program} PRIVATE syncguard_settings syncguard-sqlite syncguard
      PkgConfig::SQLITE)
    list(APPEND files $<TARGET_FILE:${program}>)
  endforeach()
  add_custom_target(bench-sqlite
    COMMAND ${CMAKE_CURRENT_LIST_DIR}/each.sh ${files}
    DEPENDS ${programs} USES_TERMINAL)
endif()
