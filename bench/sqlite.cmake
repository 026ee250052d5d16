# The SQLite figures: `cmake --build build --target bench-sqlite`.
if(TARGET syncguard-sqlite)
  syncguard_find(SQLITE sqlite3>=3.35)
  add_executable(sqlite_pair ${CMAKE_CURRENT_LIST_DIR}/sqlite_pair.c)
  target_link_libraries(sqlite_pair PRIVATE syncguard_settings syncguard-sqlite syncguard
    PkgConfig::SQLITE)
  add_executable(sqlite_handover ${CMAKE_CURRENT_LIST_DIR}/sqlite_handover.c)
  target_link_libraries(sqlite_handover PRIVATE syncguard_settings syncguard-sqlite syncguard)
  add_executable(sqlite_growth ${CMAKE_CURRENT_LIST_DIR}/sqlite_growth.c)
  target_link_libraries(sqlite_growth PRIVATE syncguard_settings syncguard-sqlite syncguard
    PkgConfig::SQLITE)
  add_custom_target(bench-sqlite
    COMMAND sqlite_pair
    COMMAND sqlite_handover
    COMMAND sqlite_growth
    DEPENDS sqlite_pair sqlite_handover sqlite_growth
    USES_TERMINAL)
endif()
