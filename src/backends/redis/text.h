/* Commands in the server's protocol (RESP), written into one buffer. */
#ifndef SYNCGUARD_REDIS_TEXT_H
#define SYNCGUARD_REDIS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Lack of memory is remembered in `failed`. */
typedef struct sg_redis_text {
    char *data;
    size_t length;
    size_t size;
    bool failed;
    char local[1536];
} sg_redis_text;

void sg_redis_text_init(sg_redis_text *text);
/* Starts on the heap, so that two texts can be swapped by their pointers. */
bool sg_redis_text_reserve(sg_redis_text *text, size_t size);
void sg_redis_text_free(sg_redis_text *text);
void sg_redis_text_add(sg_redis_text *text, const void *data, size_t length);
/* A whole command of C strings; NULL ends them. */
void sg_redis_text_words(sg_redis_text *text, const char *first, ...)
#if defined(__GNUC__)
    __attribute__((sentinel))
#endif
    ;
/* Begins a command of `count` arguments, which follow. */
void sg_redis_text_command(sg_redis_text *text, size_t count);
void sg_redis_text_arg(sg_redis_text *text, const void *data, size_t length);
void sg_redis_text_arg_str(sg_redis_text *text, const char *string);
void sg_redis_text_arg_int(sg_redis_text *text, int64_t value);

#endif
