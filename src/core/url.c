/*
 * Reading backend URLs: scheme:[//[user[:password]@]hosts][path][?name=value&...]
 *
 * A URL may hold a password, and a mistyped one may hold it in the wrong place.
 * So messages show nothing of it except the names of options, and those only if
 * they look like names. The parsed parts are wiped when they are freed.
 */
#include "syncguard/sys/url.h"

#include <ctype.h>
#include <string.h>

#include "core/text.h"
#include "syncguard/sys/alloc.h"
#include "syncguard/sys/fail.h"

#define NAME_MAX_BYTES 64

static syncguard_status url_refuse(syncguard_error *err, const char *what)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "%s", what);
}

/* Names the option if that cannot reveal a part of a misplaced password. */
static syncguard_status url_refuse_option(syncguard_error *err, const char *name, const char *what)
{
    const char *c = name;
    for (; *c != 0; c++) {
        if (!isalnum((unsigned char)*c) && *c != '_' && *c != '-' && *c != '.')
            break;
    }
    if (*c != 0 || c == name || c - name > NAME_MAX_BYTES)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "an option of the URL (its name is unreadable) %s", what);
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "option %s %s", name, what);
}

void syncguard_url_free(syncguard_url *url)
{
    if (url == NULL)
        return;
    syncguard_free(url->scheme);
    syncguard_free_secret(url->user);
    syncguard_free_secret(url->password);
    syncguard_free_secret(url->hosts);
    syncguard_free_secret(url->path);
    for (size_t i = 0; i < url->option_count; i++) {
        syncguard_free_secret(url->options[i].name);
        syncguard_free_secret(url->options[i].value);
    }
    syncguard_free(url);
}

static int url_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* A percent-decoded copy of [from, to). */
static syncguard_status url_decode(const char *from, const char *to, char **out,
                                   syncguard_error *err)
{
    char *copy = syncguard_malloc((size_t)(to - from) + 1);
    char *end = copy;
    if (copy == NULL)
        return syncguard_fail_memory(err);
    *out = copy;
    while (from < to) {
        if (*from != '%') {
            *end++ = *from++;
            *end = '\0';
            continue;
        }
        int high = -1;
        int low = -1;
        if (to - from >= 3) {
            high = url_hex_digit(from[1]);
            low = url_hex_digit(from[2]);
        }
        *end = '\0';
        if (high < 0 || low < 0)
            return url_refuse(err, "the URL has a '%' that is not followed by two hex digits");
        if (high == 0 && low == 0)
            return url_refuse(err, "the URL has a NUL character (%00)");
        *end++ = (char)(high * 16 + low);
        from += 3;
    }
    *end = '\0';
    return SYNCGUARD_OK;
}

static syncguard_status url_parse_scheme(syncguard_url *url, const char *text, const char *colon,
                                         syncguard_error *err)
{
    url->scheme = syncguard_strndup(text, (size_t)(colon - text));
    if (url->scheme == NULL)
        return syncguard_fail_memory(err);
    for (char *c = url->scheme; *c != 0; c++)
        *c = (char)sg_ascii_lower(*c);
    return SYNCGUARD_OK;
}

/* Splits at the last '@': a password with an unescaped '@' must not end up among the hosts. */
static syncguard_status url_parse_authority(syncguard_url *url, const char *from, const char *to,
                                            syncguard_error *err)
{
    const char *at = memrchr(from, '@', (size_t)(to - from));
    if (at == NULL)
        return url_decode(from, to, &url->hosts, err);
    const char *colon = memchr(from, ':', (size_t)(at - from));
    syncguard_status status = url_decode(from, colon != NULL ? colon : at, &url->user, err);
    if (status == SYNCGUARD_OK && colon != NULL)
        status = url_decode(colon + 1, at, &url->password, err);
    if (status == SYNCGUARD_OK)
        status = url_decode(at + 1, to, &url->hosts, err);
    return status;
}

static syncguard_status url_parse_option(syncguard_url *url, const char *from, const char *to,
                                         syncguard_error *err)
{
    const char *equals = memchr(from, '=', (size_t)(to - from));
    syncguard_url_option *option = &url->options[url->option_count];
    if (url->option_count == SYNCGUARD_URL_MAX_OPTIONS)
        return url_refuse(err, "the URL has too many options");
    url->option_count++;
    syncguard_status status = url_decode(from, equals != NULL ? equals : to, &option->name, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (equals == NULL) /* it may be the rest of a value with an unescaped '&' in it */
        return url_refuse(err, "an option of the URL has no value; inside a value write & as %26");
    if (equals == from)
        return url_refuse(err, "the URL has an option without a name");
    for (size_t i = 0; i + 1 < url->option_count; i++) {
        if (strcmp(url->options[i].name, option->name) == 0)
            return url_refuse_option(err, option->name, "is given more than once");
    }
    return url_decode(equals + 1, to, &option->value, err);
}

static syncguard_status url_parse_query(syncguard_url *url, const char *from, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    while (*from != 0 && status == SYNCGUARD_OK) {
        const char *to = from + strcspn(from, "&");
        status = url_parse_option(url, from, to, err);
        from = *to != 0 ? to + 1 : to;
    }
    return status;
}

static syncguard_status url_parse_rest(syncguard_url *url, const char *rest, syncguard_error *err)
{
    const char *path = rest;
    const char *query = rest + strcspn(rest, "?");
    syncguard_status status = SYNCGUARD_OK;
    if (rest[0] == '/' && rest[1] == '/') {
        const char *authority = rest + 2;
        path = authority + strcspn(authority, "/?");
        /* Otherwise the first part of the password in user:pass/word@host would become a host. */
        if (path > authority && memchr(authority, '@', (size_t)(path - authority)) == NULL &&
            strchr(path, '@') != NULL)
            return url_refuse(err,
                              "the URL has an '@' behind its hosts: in user info write / as %2F "
                              "and ? as %3F, elsewhere write @ as %40");
        status = url_parse_authority(url, authority, path, err);
    }
    if (status == SYNCGUARD_OK)
        status = url_decode(path, query, &url->path, err);
    if (status == SYNCGUARD_OK && *query != 0)
        status = url_parse_query(url, query + 1, err);
    return status;
}

static syncguard_status url_check_characters(const char *text, syncguard_error *err)
{
    for (const char *c = text; *c != 0; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            return url_refuse(err, "the URL has a control character; write it as %XX");
        if (*c == '#')
            return url_refuse(err, "the URL has a '#'; write it as %23");
    }
    return SYNCGUARD_OK;
}

syncguard_status syncguard_url_parse(const char *text, syncguard_url **out, syncguard_error *err)
{
    *out = NULL;
    if (text == NULL)
        return url_refuse(err, "the URL is missing");
    if (strnlen(text, SYNCGUARD_URL_MAX_BYTES + 1) > SYNCGUARD_URL_MAX_BYTES)
        return url_refuse(err, "the URL is too long");
    const char *colon = sg_scheme_end(text);
    if (colon == NULL)
        return url_refuse(err, "the URL does not begin with a scheme such as sqlite: or redis:");
    syncguard_status status = url_check_characters(text, err);
    if (status != SYNCGUARD_OK)
        return status;
    syncguard_url *url = syncguard_calloc(1, sizeof *url);
    if (url == NULL)
        return syncguard_fail_memory(err);
    status = url_parse_scheme(url, text, colon, err);
    if (status == SYNCGUARD_OK)
        status = url_parse_rest(url, colon + 1, err);
    if (status == SYNCGUARD_OK) {
        *out = url;
        url = NULL;
    }
    syncguard_url_free(url);
    return status;
}

const char *syncguard_url_text(syncguard_url *url, const char *name)
{
    for (size_t i = 0; i < url->option_count; i++) {
        if (strcmp(url->options[i].name, name) == 0) {
            url->options[i].used = true;
            return url->options[i].value;
        }
    }
    return NULL;
}

syncguard_status syncguard_url_int(syncguard_url *url, const char *name, int64_t low, int64_t high,
                                   int64_t *value, syncguard_error *err)
{
    const char *text = syncguard_url_text(url, name);
    if (text == NULL)
        return SYNCGUARD_OK;
    int64_t read = 0;
    if (!sg_read_int64(text, &read))
        return url_refuse_option(err, name, "is not a whole number");
    if (read < low || read > high)
        return url_refuse_option(err, name, "is out of range");
    *value = read;
    return SYNCGUARD_OK;
}

syncguard_status syncguard_url_choice(syncguard_url *url, const char *name,
                                      const char *const *words, int *index, syncguard_error *err)
{
    const char *text = syncguard_url_text(url, name);
    if (text == NULL)
        return SYNCGUARD_OK;
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(words[i], text) == 0) {
            *index = i;
            return SYNCGUARD_OK;
        }
    }
    return url_refuse_option(err, name, "has a value that it cannot have");
}

syncguard_status syncguard_url_bool(syncguard_url *url, const char *name, bool *value,
                                    syncguard_error *err)
{
    static const char *const words[] = {"0", "false", "1", "true", NULL};
    int index = -1;
    syncguard_status status = syncguard_url_choice(url, name, words, &index, err);
    if (status == SYNCGUARD_OK && index >= 0)
        *value = index >= 2;
    return status;
}

syncguard_status syncguard_url_common(syncguard_url *url, syncguard_options *options,
                                      syncguard_error *err)
{
    syncguard_status status =
        syncguard_url_int(url, "timeout_ms", 1, SYNCGUARD_MAX_TIME_MS, &options->timeout_ms, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_int(url, "dispose_timeout_ms", 0, SYNCGUARD_MAX_TIME_MS,
                                   &options->dispose_timeout_ms, err);
    if (status == SYNCGUARD_OK)
        status = syncguard_url_bool(url, "cleanup", &options->cleanup_in_is_locked, err);
    return status;
}

syncguard_status syncguard_url_done(const syncguard_url *url, syncguard_error *err)
{
    for (size_t i = 0; i < url->option_count; i++) {
        if (!url->options[i].used)
            return url_refuse_option(err, url->options[i].name, "is not known to this backend");
    }
    return SYNCGUARD_OK;
}
