# bench-redis: all figures of the Redis backend, each on a server of its own.
if(TARGET syncguard-redis)
  set(programs redis_pair redis_server redis_handover redis_waiters)
  foreach(program ${programs})
    add_executable(${program} EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/${program}.c)
    target_include_directories(${program} PRIVATE ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(${program} PRIVATE syncguard_settings syncguard-redis_static)
  endforeach()
  set(with_redis ${CMAKE_SOURCE_DIR}/tests/redis/with-redis)
  add_custom_target(bench-redis
    COMMAND ${with_redis} tcp $<TARGET_FILE:redis_pair>
    COMMAND ${with_redis} tcp $<TARGET_FILE:redis_server>
    COMMAND ${with_redis} tcp $<TARGET_FILE:redis_handover>
    COMMAND ${with_redis} tcp $<TARGET_FILE:redis_waiters>
    DEPENDS ${programs} USES_TERMINAL)
endif()
