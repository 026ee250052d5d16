/*
 * The labels of every Prometheus series of a telemetry handle, made once at wrap time.
 *
 * Names follow the data model of Prometheus and cannot be those that the library uses itself;
 * values are UTF-8, and characters that have a meaning in the text format are escaped.
 */
#include "core/telemetry.h"

#include <stdio.h>
#include <string.h>

#include "core/nfc.h"

/* Each byte of a value may become two. */
#define LABEL_SIZE (SYNCGUARD_MAX_LABEL_NAME + 2 * SYNCGUARD_MAX_LABEL_VALUE + 4)
/* The name of the handle, and 96 bytes for the name of the backend and the words around both. */
#define FIRST_SIZE (SYNCGUARD_MAX_HANDLE_NAME + 96)

/* Numbers the handles of this process that have no name. */
static atomic_uint unnamed;

static syncguard_status labels_refuse(const char *what, syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "%s", what);
}

static syncguard_status labels_check_handle_name(const char *name, syncguard_error *err)
{
    size_t length = name != NULL ? strnlen(name, SYNCGUARD_MAX_HANDLE_NAME + 1) : 1;
    if (length == 0 || length > SYNCGUARD_MAX_HANDLE_NAME)
        return labels_refuse("handle_name must have 1 to 64 bytes", err);
    for (size_t i = 0; name != NULL && i < length; i++) {
        if (name[i] <= ' ' || name[i] > '~' || name[i] == '"' || name[i] == '\\')
            return labels_refuse("handle_name must be printable ASCII without blanks and quotes",
                                 err);
    }
    return SYNCGUARD_OK;
}

static bool label_char_is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool label_name_is_valid(const char *name)
{
    static const char *const own[] = {"backend", "handle", "type",     "result",
                                      "reason",  "error",  "quantile", "le"};
    size_t length = name != NULL ? strnlen(name, SYNCGUARD_MAX_LABEL_NAME + 1) : 0;
    if (length == 0 || length > SYNCGUARD_MAX_LABEL_NAME || strncmp(name, "__", 2) == 0)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (!label_char_is_letter(name[i]) && (i == 0 || name[i] < '0' || name[i] > '9'))
            return false;
    }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (strcmp(name, own[i]) == 0)
            return false;
    }
    return true;
}

static syncguard_status label_check(const syncguard_label *labels, size_t at, syncguard_error *err)
{
    const char *value = labels[at].value;
    size_t length = value != NULL ? strnlen(value, SYNCGUARD_MAX_LABEL_VALUE + 1) : 0;
    if (!label_name_is_valid(labels[at].name))
        return labels_refuse(
            "the name of a label must be 1 to 64 letters, digits and underscores, begin "
            "with neither a digit nor __, and not be one of the library's own",
            err);
    for (size_t i = 0; i < at; i++) {
        if (strcmp(labels[i].name, labels[at].name) == 0)
            return labels_refuse("a label is given twice", err);
    }
    if (value == NULL || length > SYNCGUARD_MAX_LABEL_VALUE || !sg_utf8_valid(value, length))
        return labels_refuse("the value of a label must be at most 256 bytes of UTF-8", err);
    return SYNCGUARD_OK;
}

static char *label_append(char *at, const syncguard_label *label)
{
    at += snprintf(at, SYNCGUARD_MAX_LABEL_NAME + 4, ",%s=\"", label->name);
    for (const char *from = label->value; *from != '\0'; from++) {
        if (*from == '\\' || *from == '"' || *from == '\n')
            *at++ = '\\';
        *at++ = (char)(*from == '\n' ? 'n' : *from);
    }
    *at++ = '"';
    *at = '\0';
    return at;
}

syncguard_status sg_labels_make(const char *backend, const syncguard_telemetry_options *options,
                                char **out, syncguard_error *err)
{
    const char *handle = options->handle_name;
    syncguard_status status = labels_check_handle_name(handle, err);
    if (status == SYNCGUARD_OK && (options->label_count > SYNCGUARD_MAX_LABELS ||
                                   (options->label_count > 0 && options->labels == NULL)))
        status = labels_refuse("there are more than 16 labels, or labels is NULL", err);
    for (size_t i = 0; status == SYNCGUARD_OK && i < options->label_count; i++)
        status = label_check(options->labels, i, err);
    if (status != SYNCGUARD_OK)
        return status;
    *out = syncguard_calloc(1, FIRST_SIZE + options->label_count * LABEL_SIZE);
    if (*out == NULL)
        return syncguard_fail_memory(err);
    char number[16];
    if (handle == NULL) {
        snprintf(number, sizeof number, "%u", atomic_fetch_add(&unnamed, 1) + 1);
        handle = number;
    }
    char *at =
        *out + snprintf(*out, FIRST_SIZE, "backend=\"%.32s\",handle=\"%s\"", backend, handle);
    for (size_t i = 0; i < options->label_count; i++)
        at = label_append(at, &options->labels[i]);
    return SYNCGUARD_OK;
}
