/*
 * See record.h. No state.
 *
 * Integers travel as text (integerValue); clients in JavaScript may have stored doubles, which are
 * read as well. Nothing is assumed about a document that we did not write in this very commit.
 */
#include "record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "names.h"
#include "text.h"

/* ---- reading ---- */

static const json_t *firestore_document_field(const json_t *document, const char *name)
{
    return json_object_get(json_object_get(document, "fields"), name);
}

/* A text without NUL bytes, else NULL: cut short it would name something else. */
static const char *firestore_text_without_nul(const json_t *value)
{
    const char *text = json_string_value(value);
    return text != NULL && strlen(text) == json_string_length(value) ? text : NULL;
}

/* Copies a text without NUL bytes that is not empty and fits; else out is "". */
static bool firestore_text_copy(const json_t *value, char *out, size_t size)
{
    const char *text = firestore_text_without_nul(value);
    out[0] = '\0';
    if (text == NULL || text[0] == 0 || strlen(text) >= size)
        return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static bool firestore_value_read_text(const json_t *value, char *out, size_t size)
{
    return firestore_text_copy(json_object_get(value, "stringValue"), out, size);
}

/* The key in NFC: another client may have stored it in another form, which may be longer. */
static void firestore_value_read_key(const json_t *value, sg_firestore_lock *lock)
{
    char raw[SYNCGUARD_MAX_RAW_KEY_BYTES + 1];
    size_t length = 0;
    syncguard_status status = SYNCGUARD_E_INTERNAL;
    if (firestore_value_read_text(value, raw, sizeof raw))
        status = syncguard_key_normalize(raw, lock->record.key, &length, NULL);
    if (status != SYNCGUARD_OK)
        lock->record.key[0] = '\0';
    lock->no_memory = status == SYNCGUARD_E_OUT_OF_MEMORY;
}

static bool firestore_value_read_time(const json_t *value, int64_t *out)
{
    const json_t *integer = json_object_get(value, "integerValue");
    const json_t *real = json_object_get(value, "doubleValue");
    if (json_is_integer(integer)) {
        *out = json_integer_value(integer);
    } else if (json_is_string(integer)) {
        const char *text = json_string_value(integer);
        size_t length = json_string_length(integer);
        size_t sign = text[0] == '-' ? 1 : 0;
        /* 18 digits cannot overflow; a time has 13. */
        if (length == sign || length > 18 || strspn(text + sign, "0123456789") != length - sign)
            return false;
        *out = strtoll(text, NULL, 10);
    } else if (json_is_number(real)) {
        double number = json_number_value(real);
        if (!(fabs(number) <= (double)SYNCGUARD_MAX_TIME_MS))
            return false;
        *out = (int64_t)ceil(number); /* rounding changes no comparison with whole milliseconds */
    } else {
        return false;
    }
    return *out >= -SYNCGUARD_MAX_TIME_MS && *out <= SYNCGUARD_MAX_TIME_MS;
}

void sg_firestore_lock_decode(const json_t *document, sg_firestore_lock *lock)
{
    syncguard_record *record = &lock->record;
    memset(lock, 0, sizeof *lock);
    lock->name = firestore_text_without_nul(json_object_get(document, "name"));
    if (!firestore_text_copy(json_object_get(document, "updateTime"), lock->update_time,
                             sizeof lock->update_time) ||
        lock->name == NULL)
        return;
    lock->has_expiry = firestore_value_read_time(firestore_document_field(document, "expiresAtMs"),
                                                 &record->expires_at_ms);
    if (!firestore_value_read_text(firestore_document_field(document, "lockId"), record->lock_id,
                                   sizeof record->lock_id) ||
        !syncguard_lock_id_valid(record->lock_id))
        record->lock_id[0] = '\0';
    firestore_value_read_key(firestore_document_field(document, "key"), lock);
    if (!firestore_value_read_text(firestore_document_field(document, "fence"), record->fence,
                                   sizeof record->fence) ||
        !syncguard_fence_valid(record->fence))
        record->fence[0] = '\0';
    (void)firestore_value_read_text(firestore_document_field(document, "owner"), record->owner,
                                    sizeof record->owner);
    if (!firestore_value_read_time(firestore_document_field(document, "acquiredAtMs"),
                                   &record->acquired_at_ms))
        record->acquired_at_ms = 0;
    lock->complete =
        lock->has_expiry && record->lock_id[0] != 0 && record->key[0] != 0 && record->fence[0] != 0;
}

syncguard_status sg_firestore_counter_decode(const json_t *document, sg_firestore_counter *counter,
                                             syncguard_error *err)
{
    char text[SYNCGUARD_FENCE_SIZE];
    if (!firestore_text_copy(json_object_get(document, "updateTime"), counter->update_time,
                             sizeof counter->update_time) ||
        !firestore_value_read_text(firestore_document_field(document, "fence"), text,
                                   sizeof text) ||
        !syncguard_fence_parse(text, &counter->value))
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                              "the fence counter in the store is unreadable");
    return SYNCGUARD_OK;
}

syncguard_status sg_firestore_fail_unreadable(const sg_firestore_lock *lock, syncguard_error *err)
{
    if (lock->no_memory)
        return syncguard_fail_memory(err);
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "the stored record cannot be read");
}

/* ---- writing ---- */

static json_t *firestore_value_from_text(const char *text)
{
    return json_pack("{s:s}", "stringValue", text);
}

static json_t *firestore_value_from_time(int64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    return json_pack("{s:s}", "integerValue", text);
}

static json_t *firestore_write_condition(const char *update_time)
{
    if (update_time[0] != 0)
        return json_pack("{s:s}", "updateTime", update_time);
    return json_pack("{s:b}", "exists", 0);
}

static json_t *firestore_write_update(const char *name, const char *update_time, json_t *fields)
{
    json_t *document = sg_firestore_set(json_pack("{s:s}", "name", name), "fields", fields);
    return sg_firestore_set(sg_firestore_set(json_object(), "update", document), "currentDocument",
                            firestore_write_condition(update_time));
}

json_t *sg_firestore_write_lock(const char *name, const char *update_time,
                                const syncguard_record *record)
{
    json_t *fields =
        sg_firestore_set(json_object(), "lockId", firestore_value_from_text(record->lock_id));
    fields = sg_firestore_set(fields, "key", firestore_value_from_text(record->key));
    fields = sg_firestore_set(fields, "fence", firestore_value_from_text(record->fence));
    fields =
        sg_firestore_set(fields, "expiresAtMs", firestore_value_from_time(record->expires_at_ms));
    fields =
        sg_firestore_set(fields, "acquiredAtMs", firestore_value_from_time(record->acquired_at_ms));
    if (record->owner[0] != 0)
        fields = sg_firestore_set(fields, "owner", firestore_value_from_text(record->owner));
    return firestore_write_update(name, update_time, fields);
}

json_t *sg_firestore_write_fence(const char *name, const char *update_time, const char *fence,
                                 const char *key)
{
    json_t *fields = sg_firestore_set(json_object(), "fence", firestore_value_from_text(fence));
    return firestore_write_update(
        name, update_time, sg_firestore_set(fields, "keyDebug", firestore_value_from_text(key)));
}

json_t *sg_firestore_write_expiry(const char *name, const char *update_time, int64_t expires_at_ms)
{
    json_t *fields =
        sg_firestore_set(json_object(), "expiresAtMs", firestore_value_from_time(expires_at_ms));
    return sg_firestore_set(firestore_write_update(name, update_time, fields), "updateMask",
                            json_pack("{s:[s]}", "fieldPaths", "expiresAtMs"));
}

json_t *sg_firestore_write_delete(const char *name, const char *update_time)
{
    return sg_firestore_set(json_pack("{s:s}", "delete", name), "currentDocument",
                            firestore_write_condition(update_time));
}

/* ---- queries ---- */

json_t *sg_firestore_query_id(const char *collection_id, const char *lock_id)
{
    /* No limit: more than one document with this id must be noticed. */
    return json_pack("{s:{s:[{s:s}],s:{s:{s:{s:s},s:s,s:{s:s}}}}}", "structuredQuery", "from",
                     "collectionId", collection_id, "where", "fieldFilter", "field", "fieldPath",
                     "lockId", "op", "EQUAL", "value", "stringValue", lock_id);
}

/* The parts that all queries for pages have in common: fields, and order by name. */
static json_t *firestore_query_make_page(json_t *from, int limit)
{
    return json_pack("{s:[o],s:{s:[{s:s},{s:s},{s:s},{s:s},{s:s},{s:s}]},s:[{s:{s:s},s:s}],s:i}",
                     "from", from, "select", "fields", "fieldPath", "lockId", "fieldPath", "key",
                     "fieldPath", "fence", "fieldPath", "expiresAtMs", "fieldPath", "acquiredAtMs",
                     "fieldPath", "owner", "orderBy", "field", "fieldPath", "__name__", "direction",
                     "ASCENDING", "limit", limit);
}

json_t *sg_firestore_query_page(const char *collection_id, int limit)
{
    json_t *query =
        firestore_query_make_page(json_pack("{s:s}", "collectionId", collection_id), limit);
    return sg_firestore_set(json_object(), "structuredQuery", query);
}

bool sg_firestore_query_next(json_t *query, const char *last)
{
    json_t *start = json_pack("{s:[{s:s}],s:b}", "values", "referenceValue", last, "before", 0);
    return json_object_set_new(json_object_get(query, "structuredQuery"), "startAt", start) == 0;
}

static json_t *firestore_query_name_filter(const char *op, json_t *name)
{
    return json_pack("{s:{s:{s:s},s:s,s:{s:o}}}", "fieldFilter", "field", "fieldPath", "__name__",
                     "op", op, "value", "referenceValue", name);
}

json_t *sg_firestore_query_below(const char *collection, int limit)
{
    /* The smallest name that a document of a collection can have, here and in the collection that
     * would follow this one. */
    static const char least[] = "/__id-9223372036854775808__";
    size_t length = strlen(collection);
    char bound[SG_FIRESTORE_PATH_BYTES + sizeof least + 1];
    json_t *query = firestore_query_make_page(json_pack("{s:b}", "allDescendants", 1), limit);
    memcpy(bound, collection, length);
    memcpy(bound + length, least, sizeof least);
    json_t *filters = sg_firestore_add(
        json_array(), firestore_query_name_filter("GREATER_THAN_OR_EQUAL", json_string(bound)));
    bound[length] = '\0';
    memcpy(bound + length + 1, least, sizeof least - 1);
    filters = sg_firestore_add(
        filters,
        firestore_query_name_filter("LESS_THAN", json_stringn(bound, length + sizeof least)));
    query = sg_firestore_set(
        query, "where",
        json_pack("{s:{s:s,s:o}}", "compositeFilter", "op", "AND", "filters", filters));
    return sg_firestore_set(json_object(), "structuredQuery", query);
}
