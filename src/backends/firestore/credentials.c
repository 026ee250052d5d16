/* See credentials.h. Secrets are wiped where they are freed and never reach a message. */
#include "credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "syncguard/sys/alloc.h"
#include "syncguard/sys/environment.h"
#include "text.h"

#define MAX_FILE_BYTES (64 * 1024)
#define MAX_HOST_BYTES 400
#define GOOGLE_TOKEN_URI "https://oauth2.googleapis.com/token"

/* NULL: see errno. */
static char *credentials_load_text(const char *path, size_t *length)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    errno = EINVAL;
    char *text = NULL;
    struct stat about;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size <= MAX_FILE_BYTES) {
        text = syncguard_calloc(1, MAX_FILE_BYTES + 1);
        errno = ENOMEM;
    }
    size_t at = 0;
    while (text != NULL && at < MAX_FILE_BYTES) {
        ssize_t n = read(fd, text + at, MAX_FILE_BYTES - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    (void)close(fd);
    *length = at;
    return text;
}

static char *credentials_copy_field(const json_t *json, const char *name)
{
    const char *text = json_string_value(json_object_get(json, name));
    return text != NULL && text[0] != 0 ? syncguard_strdup(text) : NULL;
}

static bool credentials_uri_is_safe(const char *uri)
{
    if (strncasecmp(uri, "https://", 8) == 0)
        return true;
    return strncasecmp(uri, "http://", 7) == 0 && sg_firestore_url_loopback(uri);
}

static syncguard_status credentials_read_json(sg_firestore_credentials *c, const json_t *json,
                                              syncguard_error *err)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    c->token_uri = credentials_copy_field(json, "token_uri");
    if (c->token_uri == NULL)
        c->token_uri = syncguard_strdup(GOOGLE_TOKEN_URI);
    if (c->token_uri == NULL)
        return syncguard_fail_memory(err);
    if (!credentials_uri_is_safe(c->token_uri))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "token_uri of the credentials file is neither https nor loopback");
    if (type != NULL && strcmp(type, "service_account") == 0) {
        c->kind = SG_FIRESTORE_SERVICE_ACCOUNT;
        c->client = credentials_copy_field(json, "client_email");
        c->key_id = credentials_copy_field(json, "private_key_id");
        c->secret = credentials_copy_field(json, "private_key");
        if (c->client != NULL && c->secret != NULL)
            return SYNCGUARD_OK;
    } else if (type != NULL && strcmp(type, "authorized_user") == 0) {
        c->kind = SG_FIRESTORE_USER;
        c->client = credentials_copy_field(json, "client_id");
        c->secret = credentials_copy_field(json, "client_secret");
        c->refresh_token = credentials_copy_field(json, "refresh_token");
        if (c->client != NULL && c->secret != NULL && c->refresh_token != NULL)
            return SYNCGUARD_OK;
    } else {
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "the credentials file is of no known type "
                              "(service_account, authorized_user)");
    }
    return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                          "the credentials file lacks a field of its type");
}

/* source names the option or variable in messages; the path itself is not shown. */
static syncguard_status credentials_read_file(sg_firestore_credentials *c, const char *path,
                                              const char *source, syncguard_error *err)
{
    size_t length = 0;
    char *text = credentials_load_text(path, &length);
    int error = errno;
    json_t *json = text != NULL ? json_loadb(text, length, 0, NULL) : NULL;
    syncguard_status status;
    if (text == NULL && (error == EMFILE || error == ENFILE))
        status = syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, "EMFILE",
                                "no file descriptor is left for the credentials file");
    else if (text == NULL && error == ENOMEM)
        status = syncguard_fail_memory(err);
    else if (text == NULL)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "the credentials file given by %s cannot be read", source);
    else if (json == NULL)
        status = syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                "the credentials file given by %s is no JSON", source);
    else
        status = credentials_read_json(c, json, err);
    sg_firestore_json_wipe(json_object_get(json, "private_key"));
    sg_firestore_json_wipe(json_object_get(json, "client_secret"));
    sg_firestore_json_wipe(json_object_get(json, "refresh_token"));
    json_decref(json);
    if (text != NULL)
        explicit_bzero(text, length);
    syncguard_free(text);
    return status;
}

static bool credentials_find_default(char *path, size_t size)
{
    const char *folder = syncguard_environment("CLOUDSDK_CONFIG");
    const char *home = syncguard_environment("HOME");
    int n;
    if (folder != NULL)
        n = snprintf(path, size, "%s/application_default_credentials.json", folder);
    else if (home != NULL)
        n = snprintf(path, size, "%s/.config/gcloud/application_default_credentials.json", home);
    else
        return false;
    return n > 0 && (size_t)n < size && access(path, R_OK) == 0;
}

static syncguard_status credentials_use_metadata(sg_firestore_credentials *c, syncguard_error *err)
{
    const char *host = syncguard_environment("GCE_METADATA_HOST");
    if (host == NULL)
        host = "metadata.google.internal";
    if (strlen(host) > MAX_HOST_BYTES || strcspn(host, "/?#@ ") != strlen(host))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "GCE_METADATA_HOST is no host");
    c->kind = SG_FIRESTORE_METADATA;
    c->token_uri = sg_firestore_format(
        "http://%s/computeMetadata/v1/instance/service-accounts/default/token", host);
    return c->token_uri != NULL ? SYNCGUARD_OK : syncguard_fail_memory(err);
}

static syncguard_status credentials_read_source(sg_firestore_credentials *c,
                                                const syncguard_firestore_options *options,
                                                bool emulator, syncguard_error *err)
{
    const char *named = syncguard_environment("GOOGLE_APPLICATION_CREDENTIALS");
    if (emulator) {
        c->kind = SG_FIRESTORE_EMULATOR;
        return SYNCGUARD_OK;
    }
    if (options->token != NULL) {
        c->kind = SG_FIRESTORE_CALLBACK;
        c->callback = options->token;
        c->callback_context = options->token_context;
        return SYNCGUARD_OK;
    }
    if (options->credentials_file != NULL)
        return credentials_read_file(c, options->credentials_file, "option credentials", err);
    if (named != NULL)
        return credentials_read_file(c, named, "GOOGLE_APPLICATION_CREDENTIALS", err);
    char path[4096];
    if (credentials_find_default(path, sizeof path))
        return credentials_read_file(c, path, "gcloud's default", err);
    return credentials_use_metadata(c, err);
}

syncguard_status sg_firestore_credentials_read(sg_firestore_credentials *c,
                                               const syncguard_firestore_options *options,
                                               bool emulator, syncguard_error *err)
{
    memset(c, 0, sizeof *c);
    syncguard_status status = credentials_read_source(c, options, emulator, err);
    if (status != SYNCGUARD_OK)
        sg_firestore_credentials_destroy(c);
    return status;
}

void sg_firestore_credentials_destroy(sg_firestore_credentials *c)
{
    syncguard_free_secret(c->token_uri);
    syncguard_free_secret(c->client);
    syncguard_free_secret(c->key_id);
    syncguard_free_secret(c->secret);
    syncguard_free_secret(c->refresh_token);
    memset(c, 0, sizeof *c);
}
