/* Converts error replies and answers of scripts into statuses. Every failure fills err. */
#ifndef SYNCGUARD_REDIS_ERRORS_H
#define SYNCGUARD_REDIS_ERRORS_H

#include <hiredis/hiredis.h>

#include "syncguard/sys/fail.h"

/* The code word that an error reply starts with ("NOAUTH"), or "" for other replies. */
#define SG_REDIS_WORD_SIZE 32
void sg_redis_reply_word(const redisReply *reply, char out[SG_REDIS_WORD_SIZE]);
/* Whether the reply is an error with this code word. */
bool sg_redis_reply_is(const redisReply *reply, const char *word);

/* For an error reply or an unexpected one, by its code word only. */
syncguard_status sg_redis_fail_reply(syncguard_error *err, const redisReply *reply);
/* For a negative answer of a script (scripts.h). */
syncguard_status sg_redis_fail_answer(int64_t answer, syncguard_error *err);
syncguard_status sg_redis_fail_record(syncguard_error *err);
syncguard_status sg_redis_fail_connection(syncguard_error *err);
/* Whether this is the failure that sg_redis_fail_connection reports. */
bool sg_redis_is_broken(syncguard_status status, const syncguard_error *err);
syncguard_status sg_redis_fail_errno(syncguard_error *err, int number, const char *what);
syncguard_status sg_redis_fail_moving(syncguard_error *err);
syncguard_status sg_redis_fail_replicas(syncguard_error *err);

#endif
