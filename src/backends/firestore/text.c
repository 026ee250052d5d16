/* See text.h. No state. */
#include "text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "syncguard/sys/alloc.h"

char *sg_firestore_format(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *text = NULL;
    if (length >= 0)
        text = syncguard_malloc((size_t)length + 1);
    if (text != NULL) {
        va_start(arguments, format);
        (void)vsnprintf(text, (size_t)length + 1, format, arguments);
        va_end(arguments);
    }
    return text;
}

char *sg_firestore_percent_encode(const char *text, const char *plain)
{
    static const char hex[] = "0123456789ABCDEF";
    char *out = syncguard_malloc(strlen(text) * 3 + 1);
    char *at = out;
    for (; out != NULL && *text != 0; text++) {
        unsigned char c = (unsigned char)*text;
        if ((c < 0x80 && isalnum(c)) || strchr("-._~", c) != NULL || strchr(plain, c) != NULL) {
            *at++ = (char)c;
        } else {
            *at++ = '%';
            *at++ = hex[c >> 4];
            *at++ = hex[c & 15];
        }
    }
    if (out != NULL)
        *at = '\0';
    return out;
}

bool sg_firestore_url_loopback(const char *url)
{
    static const char *const hosts[] = {"localhost", "[::1]", NULL};
    const char *host = strstr(url, "://");
    host = host != NULL ? host + 3 : url;
    size_t length = strcspn(host, "/?#");
    if (memchr(host, '@', length) != NULL)
        return false;
    if (length >= 4 && strncmp(host, "127.", 4) == 0)
        return strspn(host, "0123456789.:") >= length;
    for (size_t i = 0; hosts[i] != NULL; i++) {
        size_t n = strlen(hosts[i]);
        if (length >= n && strncasecmp(host, hosts[i], n) == 0 && (length == n || host[n] == ':'))
            return true;
    }
    return false;
}

/* ---- JSON ---- */

json_t *sg_firestore_set(json_t *object, const char *name, json_t *value)
{
    if (json_object_set_new(object, name, value) == 0)
        return object;
    json_decref(object);
    return NULL;
}

json_t *sg_firestore_add(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) == 0)
        return array;
    json_decref(array);
    return NULL;
}

char *sg_firestore_json_text(const json_t *json)
{
    size_t size = json != NULL ? json_dumpb(json, NULL, 0, JSON_COMPACT) : 0;
    char *text = size != 0 ? syncguard_malloc(size + 1) : NULL;
    if (text != NULL && json_dumpb(json, text, size, JSON_COMPACT) == size) {
        text[size] = '\0';
        return text;
    }
    syncguard_free(text);
    return NULL;
}

void sg_firestore_json_wipe(const json_t *string)
{
    const char *text = json_string_value(string);
    if (text != NULL)
        explicit_bzero((void *)(uintptr_t)text, json_string_length(string));
}
