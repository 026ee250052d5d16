/* Reading backend URLs. Messages name options, never their values or user info. */
#ifndef SYNCGUARD_SYS_URL_H
#define SYNCGUARD_SYS_URL_H

#include "../backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Limits of a URL. */
#define SYNCGUARD_URL_MAX_BYTES 8192
#define SYNCGUARD_URL_MAX_OPTIONS 32

/* An option in the query; used is set when it is read. */
typedef struct syncguard_url_option {
    char *name;
    char *value; /* percent-decoded */
    bool used;
} syncguard_url_option;

/* scheme:[//[user[:password]@]hosts][path][?name=value&...]; everything is percent-decoded. */
typedef struct syncguard_url {
    char *scheme;
    char *user;     /* NULL if absent */
    char *password; /* NULL if absent */
    char *hosts;    /* "h1:p1,h2:p2", brackets of IPv6 kept; "" if empty, NULL without // */
    char *path;     /* with its leading slash if it has one; "" if absent */
    size_t option_count;
    syncguard_url_option options[SYNCGUARD_URL_MAX_OPTIONS];
} syncguard_url;

/* InvalidArgument for malformed, too long or repeated parts. The caller frees *out. */
SYNCGUARD_API syncguard_status syncguard_url_parse(const char *text, syncguard_url **out,
                                                   syncguard_error *err);
/* Overwrites all parts, then frees them. NULL is ignored. */
SYNCGUARD_API void syncguard_url_free(syncguard_url *url);

/* The value of an option, which belongs to url; NULL if it is absent. Marks the option as used. */
SYNCGUARD_API const char *syncguard_url_text(syncguard_url *url, const char *name);
/* These do not change *value if the option is absent. InvalidArgument, with the name of the option,
 * if its value cannot be read or is out of range. A bool is 0, 1, true or false. */
SYNCGUARD_API syncguard_status syncguard_url_int(syncguard_url *url, const char *name, int64_t low,
                                                 int64_t high, int64_t *value,
                                                 syncguard_error *err);
SYNCGUARD_API syncguard_status syncguard_url_bool(syncguard_url *url, const char *name, bool *value,
                                                  syncguard_error *err);
/* words is NULL-terminated; *index is the position of the option's value in it. */
SYNCGUARD_API syncguard_status syncguard_url_choice(syncguard_url *url, const char *name,
                                                    const char *const *words, int *index,
                                                    syncguard_error *err);
/* Applies the options that every backend has (timeout_ms, dispose_timeout_ms, cleanup). */
SYNCGUARD_API syncguard_status syncguard_url_common(syncguard_url *url, syncguard_options *options,
                                                    syncguard_error *err);
/* InvalidArgument if an option was not used; the message names the first one. */
SYNCGUARD_API syncguard_status syncguard_url_done(const syncguard_url *url, syncguard_error *err);

/* Copies the caller's options (NULL: the defaults) to *out, which has the size that this library
 * knows. InvalidArgument if the size or a value is not valid. Copies pointers, not strings. */
SYNCGUARD_API syncguard_status syncguard_options_read(const syncguard_options *given,
                                                      syncguard_options *out, syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
