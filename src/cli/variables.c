/*
 * See variables.h.
 *
 * SYNCGUARD_HELD lists what the outer runs hold: "KEY:ID" for each lock, with commas between them.
 * Both are hashes, so that the variable is short and safe to print; they are no secret to a child,
 * which is told both anyway. No store is named, because the lock id is unique: the store that has
 * this id under this key is the right one.
 */
#include "variables.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exitcode.h"
#include "store.h"

enum {
    OTHERS = 3,  /* variables that do not belong to one key */
    PER_KEY = 5, /* those that do */
    ENTRY = 2 * (SYNCGUARD_HASH_SIZE - 1) + 2,
    LONGEST_HELD = 64 * ENTRY * 4, /* of outer runs; a longer variable is ignored */
    LOOKUP_TIMEOUT_MS = 2000
};

/* Whether the variable is set anew, or must not be passed on. A URL without a password stays as it
 * is. */
static bool variable_is_dropped(const char *variable, bool export_url)
{
    static const char *const names[] = {
        "SYNCGUARD_KEYS", "SYNCGUARD_KEY",           "SYNCGUARD_FENCE", "SYNCGUARD_LOCK_ID",
        "SYNCGUARD_HELD", "SYNCGUARD_EXPIRES_AT_MS", "SYNCGUARD_SLOT"};
    if (strncmp(variable, "SYNCGUARD_URL=", 14) == 0)
        return export_url || cli_url_has_password(variable + 14);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(variable, names[i], strlen(names[i])) != 0)
            continue;
        const char *rest = variable + strlen(names[i]);
        if (*rest == '_') /* the variable of one key of several */
            rest += 1 + strspn(rest + 1, "0123456789");
        if (*rest == '=')
            return true;
    }
    return false;
}

/* Appends NAME or NAME_NUMBER (number above 0). False if memory is short. */
static bool variables_add(char **end, const char *name, int number, const char *value)
{
    size_t size = strlen(name) + 16 + strlen(value);
    char *text = malloc(size);
    if (text == NULL)
        return false;
    if (number > 0)
        snprintf(text, size, "%s_%d=%s", name, number, value);
    else
        snprintf(text, size, "%s=%s", name, value);
    while (*end != NULL)
        end++;
    *end = text;
    return true;
}

static bool variables_add_key(char **end, const syncguard_lock *lock, int number)
{
    char expiry[24], slot[16];
    snprintf(slot, sizeof slot, "%d", syncguard_lock_slot(lock));
    snprintf(expiry, sizeof expiry, "%lld", (long long)syncguard_lock_expires_at_ms(lock));
    return variables_add(end, "SYNCGUARD_KEY", number, syncguard_lock_key(lock)) &&
           variables_add(end, "SYNCGUARD_LOCK_ID", number, syncguard_lock_id(lock)) &&
           variables_add(end, "SYNCGUARD_FENCE", number, syncguard_lock_fence(lock)) &&
           variables_add(end, "SYNCGUARD_EXPIRES_AT_MS", number, expiry) &&
           (syncguard_lock_slot(lock) == 0 || variables_add(end, "SYNCGUARD_SLOT", number, slot));
}

/* One key has plain names, several have numbers in the order of the command line. */
static bool variables_add_keys(char **end, const cli_options *options,
                               const syncguard_lock_set *set)
{
    char count[16];
    if (options->key_count == 1)
        return variables_add_key(end, syncguard_lock_set_at(set, 0), 0);
    snprintf(count, sizeof count, "%d", options->key_count);
    bool added = variables_add(end, "SYNCGUARD_KEYS", 0, count);
    for (int i = 0; i < options->key_count && added; i++)
        added = variables_add_key(end, syncguard_lock_set_find(set, options->keys[i]), i + 1);
    return added;
}

/* The locks that outer runs hold; "" if the variable is missing or too long. */
static const char *variables_outer_held(void)
{
    const char *held = getenv("SYNCGUARD_HELD");
    return held != NULL && strnlen(held, LONGEST_HELD + 1) <= LONGEST_HELD ? held : "";
}

static bool variables_add_held(char **end, const syncguard_lock_set *set)
{
    const char *outer = variables_outer_held();
    size_t used = strlen(outer), size = used + syncguard_lock_set_count(set) * (ENTRY + 1) + 1;
    char *text = malloc(size);
    if (text == NULL)
        return false;
    memcpy(text, outer, used + 1);
    for (size_t i = 0; i < syncguard_lock_set_count(set); i++) {
        const syncguard_lock *lock = syncguard_lock_set_at(set, i);
        char key[SYNCGUARD_HASH_SIZE], id[SYNCGUARD_HASH_SIZE];
        if (syncguard_hash(syncguard_lock_key(lock), key) &&
            syncguard_hash(syncguard_lock_id(lock), id))
            used +=
                (size_t)snprintf(text + used, size - used, "%s%s:%s", used > 0 ? "," : "", key, id);
    }
    bool added = variables_add(end, "SYNCGUARD_HELD", 0, text);
    free(text);
    return added;
}

/* A URL with a password is not passed on. An empty one is passed instead, so that a nested command
 * fails and does not use another store. */
static bool variables_add_url(char **end, const cli_options *options, bool drop_url)
{
    char url[CLI_URL_SIZE] = "";
    if (options->export_url && cli_store_url(options, url) != CLI_OK)
        url[0] = '\0';
    return !(drop_url || options->export_url) || variables_add(end, "SYNCGUARD_URL", 0, url);
}

void cli_variables_make(cli_variables *variables, const cli_options *options,
                        const syncguard_lock_set *set)
{
    size_t count = 0;
    while (environ[count] != NULL)
        count++;
    variables->list =
        calloc(count + OTHERS + (size_t)options->key_count * PER_KEY + 1, sizeof *variables->list);
    if (variables->list == NULL)
        return;
    size_t used = 0;
    bool drop_url = false;
    for (size_t i = 0; i < count; i++) {
        if (!variable_is_dropped(environ[i], options->export_url))
            variables->list[used++] = environ[i];
        else
            drop_url = drop_url || strncmp(environ[i], "SYNCGUARD_URL=", 14) == 0;
    }
    variables->made = variables->list + used;
    if (!variables_add_keys(variables->made, options, set) ||
        !variables_add_held(variables->made, set) ||
        !variables_add_url(variables->made, options, drop_url))
        cli_variables_free(variables);
}

void cli_variables_free(cli_variables *variables)
{
    for (char **made = variables->made; variables->list != NULL && *made != NULL; made++)
        free(*made);
    free(variables->list);
    variables->list = NULL;
}

static bool key_held_by_outer_run(syncguard_backend *backend, const char *key)
{
    const char *held = variables_outer_held();
    char entry[ENTRY + 1];
    syncguard_lock_info_raw lock;
    syncguard_call call = SYNCGUARD_CALL_INIT;
    if (*held == '\0' || !syncguard_hash(key, entry) || strstr(held, entry) == NULL)
        return false;
    call.timeout_ms = LOOKUP_TIMEOUT_MS;
    if (syncguard_get_by_key_raw(backend, key, &call, &lock, NULL) != SYNCGUARD_OK)
        return false;
    entry[SYNCGUARD_HASH_SIZE - 1] = ':';
    return syncguard_hash(lock.lock_id, entry + SYNCGUARD_HASH_SIZE) && strstr(held, entry) != NULL;
}

/* With slots, any slot counts. The wait then need not be a deadlock, but is one when runs of the
 * same kind hold the other slots. */
bool cli_held_by_outer_run(syncguard_backend *backend, const char *key, int slots)
{
    char slot[SYNCGUARD_KEY_SIZE];
    bool held = slots == 0 && key_held_by_outer_run(backend, key);
    for (int i = 1; i <= slots && !held && *variables_outer_held() != '\0'; i++)
        held = syncguard_slot_key(key, i, slot, NULL) == SYNCGUARD_OK &&
               key_held_by_outer_run(backend, slot);
    return held;
}
