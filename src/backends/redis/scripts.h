/* The scripts (scripts/) and their answers. CMake makes scripts.c with their texts and SHA-1s. */
#ifndef SYNCGUARD_REDIS_SCRIPTS_H
#define SYNCGUARD_REDIS_SCRIPTS_H

typedef enum sg_redis_script_id {
    SG_REDIS_SCRIPT_ACQUIRE,
    SG_REDIS_SCRIPT_RELEASE,
    SG_REDIS_SCRIPT_EXTEND,
    SG_REDIS_SCRIPT_UNDO,
    SG_REDIS_SCRIPT_CLEANUP,
    SG_REDIS_SCRIPT_READ,
    SG_REDIS_SCRIPT_FIND,
    SG_REDIS_SCRIPT_HOLD,
    SG_REDIS_SCRIPTS
} sg_redis_script_id;

typedef struct sg_redis_script {
    const char *text;
    const char *sha;
} sg_redis_script;

extern const sg_redis_script sg_redis_scripts[SG_REDIS_SCRIPTS];

/* Numbers that scripts answer with; the comments of the scripts say which. */
enum {
    SG_REDIS_NOT_FOUND = 0,
    SG_REDIS_EXPIRED = 1,
    SG_REDIS_BAD_RECORD = -2,
    SG_REDIS_BAD_COUNTER = -3,
    SG_REDIS_COUNTER_ENDS = -4,
    SG_REDIS_ID_SPENT = -5,
    SG_REDIS_ELSEWHERE = -6 /* the node has only some of the lock's names: the hash slot moves */
};

#endif
