/* Status names and the caller's error struct. Nothing here allocates. */
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/hash.h"
#include "syncguard/sys/fail.h"

const char *syncguard_status_name(syncguard_status status)
{
    switch (status) {
#define STATUS_NAME(id, value, name, meaning)                                                      \
    case SYNCGUARD_##id:                                                                           \
        return name;
        SYNCGUARD_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    }
    return "Unknown";
}

const char *syncguard_status_text(syncguard_status status)
{
    switch (status) {
#define STATUS_TEXT(id, value, name, meaning)                                                      \
    case SYNCGUARD_##id:                                                                           \
        return meaning;
        SYNCGUARD_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "not a status of this library";
}

const char *syncguard_errno_text(int error)
{
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 32)
    const char *text = strerrordesc_np(error);
    return text != NULL ? text : "unknown error";
#else
    /* Not the thread's locale, which may be LC_GLOBAL_LOCALE: musl's strerror_l crashes with it.
     * This one is static in musl and glibc. */
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    const char *text = plain != (locale_t)0 ? strerror_l(error, plain) : "unknown error";
    if (plain != (locale_t)0)
        freelocale(plain);
    return text;
#endif
}

/* Length of text without the incomplete UTF-8 sequence that truncation may have left at its end. */
static size_t error_whole_utf8_length(const char *text, size_t length)
{
    size_t start = length;
    while (start > 0 && length - start < 4 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0)
        return length;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    return length - (start - 1) < need ? start - 1 : length;
}

/* Copies text with control characters replaced, truncated to fit size. */
static void error_copy_printable(char *out, size_t size, const char *text)
{
    size_t length = strnlen(text, size);
    if (length == size)
        length = error_whole_utf8_length(text, size - 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)text[i];
        out[i] = byte < 0x20 || byte == 0x7F ? '?' : text[i];
    }
    out[length] = '\0';
}

syncguard_status syncguard_fail(syncguard_error *err, syncguard_status status, const char *native,
                                const char *format, ...)
{
    /* The arguments may point into *err itself, so the text is formatted in a buffer of its own. It
     * is one byte longer than the field so that truncation is detected. */
    char message[sizeof err->message + 1];
    char code[sizeof err->native] = "";
    if (err == NULL)
        return status;
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(message, sizeof message, format, arguments) < 0)
        message[0] = '\0';
    va_end(arguments);
    if (native != NULL)
        error_copy_printable(code, sizeof code, native);
    err->code = status;
    memcpy(err->native, code, sizeof err->native);
    err->key_hash[0] = '\0';
    error_copy_printable(err->message, sizeof err->message, message);
    return status;
}

syncguard_status syncguard_fail_memory(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_OUT_OF_MEMORY, NULL, "out of memory");
}

void syncguard_error_clear(syncguard_error *err)
{
    if (err == NULL)
        return;
    err->code = SYNCGUARD_OK;
    err->native[0] = '\0';
    err->key_hash[0] = '\0';
    err->message[0] = '\0';
}

void syncguard_error_key(syncguard_error *err, const char *key, size_t length)
{
    if (err != NULL && key != NULL)
        sg_hash_nfc(key, length, err->key_hash);
}
