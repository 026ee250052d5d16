/* Keys and what is derived from them: NFC, hashes, stored names. */
#include "fuzz.h"
#include "syncguard/sys/names.h"

/* Text in NFC does not change when it is normalized again. */
static void check_nfc(const char *text, size_t length)
{
    static char once[4 * SYNCGUARD_MAX_RAW_KEY_BYTES];
    static char twice[4 * SYNCGUARD_MAX_RAW_KEY_BYTES];
    ptrdiff_t n = syncguard_nfc(text, length, once, sizeof once);
    if (n < 0)
        return;
    FUZZ_CHECK((size_t)n < sizeof once && once[n] == '\0');
    if ((size_t)n > SYNCGUARD_MAX_RAW_KEY_BYTES)
        return;
    ptrdiff_t m = syncguard_nfc(once, (size_t)n, twice, sizeof twice);
    FUZZ_CHECK(m == n && memcmp(once, twice, (size_t)n) == 0);
}

static void check_names(const char *key, const char *prefix)
{
    static const size_t limits[][2] = {{1000, 26}, {1700, 0}, {1500, 0}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        char name[SYNCGUARD_NAME_SIZE], counter[SYNCGUARD_NAME_SIZE];
        size_t length = 0, counter_length = 0;
        syncguard_error err;
        if (syncguard_storage_name(prefix, key, limits[i][0], limits[i][1], name, &length, &err) !=
            SYNCGUARD_OK)
            continue;
        FUZZ_CHECK(length == strlen(name) && length + limits[i][1] <= limits[i][0]);
        if (syncguard_fence_name(prefix, name, limits[i][0], limits[i][1], counter, &counter_length,
                                 &err) == SYNCGUARD_OK)
            FUZZ_CHECK(counter_length == strlen(counter) && strcmp(counter, name) != 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    size_t first = strlen(text);
    /* The text after a NUL is the prefix. */
    const char *prefix = first < size ? text + first + 1 : NULL;
    check_nfc(text, size);
    char key[SYNCGUARD_KEY_SIZE];
    char hash[SYNCGUARD_HASH_SIZE];
    size_t length = 0;
    syncguard_error err;
    if (syncguard_key_normalize(text, key, &length, &err) == SYNCGUARD_OK) {
        FUZZ_CHECK(length == strlen(key) && length >= 1 && length <= SYNCGUARD_MAX_KEY_BYTES);
        FUZZ_CHECK(syncguard_hash_n(key, length, hash));
        check_names(key, prefix);
    }
    (void)syncguard_hash_n(text, size, hash);
    (void)syncguard_lock_id_valid(text);
    (void)syncguard_fence_valid(text);
    free(text);
    return 0;
}
