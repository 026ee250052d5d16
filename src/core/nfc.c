/*
 * Unicode NFC: decompose, order, compose.
 *
 * utf8proc supplies the properties of single characters and of pairs. The loop
 * over the text is here for two reasons: utf8proc 2.8.0 composes a Hangul
 * syllable with U+11A7, which is no final consonant, so that the character
 * vanishes; and characters newer than the installed utf8proc must be treated as
 * the other implementations of the interface treat them (nfc_newer.h). Hangul is
 * composed here by the arithmetic of the standard.
 */
#include "core/nfc.h"

#include <string.h>
#include <utf8proc.h>

#include "syncguard/sys/alloc.h"
#include "syncguard/sys/names.h"

/* Hangul: leading and trailing parts, and the syllables that they make. */
#define L_BASE 0x1100
#define L_COUNT 19
#define V_BASE 0x1161
#define V_COUNT 21
#define T_BASE 0x11A7 /* one before the first final consonant */
#define T_COUNT 28
#define S_BASE 0xAC00
#define S_COUNT (L_COUNT * V_COUNT * T_COUNT)

/* No character decomposes into more than this. */
#define MAX_PARTS 18
/* Texts of up to this many code points need no memory from the heap. */
#define SMALL 256

typedef struct codes {
    int32_t *at;
    size_t count;
    size_t capacity;
    int32_t small[SMALL];
} codes;

bool sg_nfc_is_plain(const char *text, size_t length)
{
    uint64_t word;
    size_t i = 0;
    for (; i + sizeof word <= length; i += sizeof word) {
        memcpy(&word, text + i, sizeof word);
        if ((word & UINT64_C(0x8080808080808080)) != 0)
            return false;
    }
    for (; i < length; i++) {
        if (((unsigned char)text[i] & 0x80) != 0)
            return false;
    }
    return true;
}

size_t sg_utf8_next(const char *text, size_t length, int32_t *code)
{
    utf8proc_int32_t read = -1;

    /* No sequence is longer than four bytes. */
    utf8proc_ssize_t step =
        utf8proc_iterate((const utf8proc_uint8_t *)text, length > 4 ? 4 : (int)length, &read);
    *code = read;
    return step > 0 && read >= 0 ? (size_t)step : 0;
}

bool sg_utf8_valid(const char *text, size_t length)
{
    int32_t code;
    size_t step;
    for (; length > 0; text += step, length -= step) {
        step = sg_utf8_next(text, length, &code);
        if (step == 0)
            return false;
    }
    return true;
}

static bool nfc_code_is_unknown(int32_t code)
{
    return utf8proc_get_property(code)->category == UTF8PROC_CATEGORY_CN;
}

static int nfc_combining_class(int32_t code)
{
    if (code < 0x300)
        return 0;
    if (nfc_code_is_unknown(code))
        return sg_newer_class(code);
    return utf8proc_get_property(code)->combining_class;
}

static bool nfc_reserve(codes *list, size_t more)
{
    size_t capacity = list->capacity * 2;
    if (list->count + more <= list->capacity)
        return true;
    int32_t *grown = syncguard_malloc(capacity * sizeof *grown);
    if (grown == NULL)
        return false;
    memcpy(grown, list->at, list->count * sizeof *grown);
    if (list->at != list->small)
        syncguard_free(list->at);
    list->at = grown;
    list->capacity = capacity;
    return true;
}

/* Appends the full canonical decomposition; the caller has reserved MAX_PARTS. */
static void nfc_append_parts(codes *list, int32_t code)
{
    int32_t halves[2];
    if (code >= 0xC0 && nfc_code_is_unknown(code) && sg_newer_split(code, halves)) {
        /* Only first halves can be split further, twice at most. */
        nfc_append_parts(list, halves[0]);
        nfc_append_parts(list, halves[1]);
        return;
    }
    int boundary = 0;
    utf8proc_ssize_t got = utf8proc_decompose_char(code, list->at + list->count, MAX_PARTS,
                                                   UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
    if (got > 0 && got <= MAX_PARTS)
        list->count += (size_t)got;
    else
        list->at[list->count++] = code;
}

static sg_nfc_result nfc_decompose(codes *list, const char *text, size_t length)
{
    int32_t code;
    size_t step;
    for (; length > 0; text += step, length -= step) {
        step = sg_utf8_next(text, length, &code);
        if (step == 0)
            return SG_NFC_INVALID;
        if (!nfc_reserve(list, MAX_PARTS))
            return SG_NFC_MEMORY;
        if (code < 0xC0)
            list->at[list->count++] = code;
        else
            nfc_append_parts(list, code);
    }
    return SG_NFC_OK;
}

/*
 * Sorts a run of marks by their classes; the sort is stable. Counting by class is
 * linear for thousands of marks in a row, where insertion would be quadratic.
 */
static bool nfc_order_run(int32_t *at, size_t count)
{
    int32_t *sorted = syncguard_malloc(count * sizeof *sorted);
    if (sorted == NULL)
        return false;
    size_t start[257] = {0};
    for (size_t i = 0; i < count; i++)
        start[nfc_combining_class(at[i]) + 1]++;
    for (size_t i = 1; i < 257; i++)
        start[i] += start[i - 1];
    for (size_t i = 0; i < count; i++)
        sorted[start[nfc_combining_class(at[i])]++] = at[i];
    memcpy(at, sorted, count * sizeof *sorted);
    syncguard_free(sorted);
    return true;
}

static void nfc_order_short_run(int32_t *at, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        int32_t code = at[i];
        int class = nfc_combining_class(code);
        size_t j = i;
        for (; j > 0 && nfc_combining_class(at[j - 1]) > class; j--)
            at[j] = at[j - 1];
        at[j] = code;
    }
}

static bool nfc_order_marks(codes *list)
{
    size_t i = 0;
    size_t end;
    while (i < list->count) {
        if (nfc_combining_class(list->at[i]) == 0) {
            i++;
            continue;
        }
        for (end = i; end < list->count && nfc_combining_class(list->at[end]) != 0; end++)
            ;
        if (end - i <= 16)
            nfc_order_short_run(list->at + i, end - i);
        else if (!nfc_order_run(list->at + i, end - i))
            return false;
        i = end;
    }
    return true;
}

/* The composition of two characters, or 0 if there is none. */
static int32_t nfc_compose_pair(int32_t first, int32_t second)
{
    utf8proc_int32_t pair[2] = {first, second};
    if (second < 0x300)
        return 0;
    if (first >= L_BASE && first < L_BASE + L_COUNT)
        return second >= V_BASE && second < V_BASE + V_COUNT
                   ? S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT
                   : 0;
    if (first >= S_BASE && first < S_BASE + S_COUNT)
        return (first - S_BASE) % T_COUNT == 0 && second > T_BASE && second < T_BASE + T_COUNT
                   ? first + (second - T_BASE)
                   : 0;
    int32_t newer = sg_newer_join(first, second);
    if (newer != 0 && nfc_code_is_unknown(newer))
        return newer;
    if (utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) != 1)
        return 0;
    return pair[0];
}

/* Composes in place. `starter` is the index of the last starter that was kept, `last_class` the
 * class of the last character kept after it (-1: none). */
static void nfc_compose(codes *list)
{
    int32_t *at = list->at;
    ptrdiff_t starter = -1;
    int last_class = -1;
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        int32_t code = at[i];
        int class = nfc_combining_class(code);
        int32_t joined = 0;
        if (starter >= 0 && last_class < class)
            joined = nfc_compose_pair(at[starter], code);
        if (joined != 0) {
            at[starter] = joined;
            continue;
        }
        if (class == 0) {
            starter = (ptrdiff_t)kept;
            last_class = -1;
        } else {
            last_class = class;
        }
        at[kept++] = code;
    }
    list->count = kept;
}

static char *nfc_encode(const codes *list, size_t *length)
{
    char *out = syncguard_malloc(list->count * 4 + 1);
    char *end = out;
    if (out == NULL)
        return NULL;
    for (size_t i = 0; i < list->count; i++)
        end += utf8proc_encode_char(list->at[i], (utf8proc_uint8_t *)end);
    *end = '\0';
    *length = (size_t)(end - out);
    return out;
}

sg_nfc_result sg_nfc_alloc(const char *text, size_t length, char **out, size_t *out_length)
{
    codes list;
    list.at = list.small;
    list.count = 0;
    list.capacity = SMALL;
    sg_nfc_result result = nfc_decompose(&list, text, length);
    if (result != SG_NFC_OK)
        goto done;
    result = SG_NFC_MEMORY;
    if (!nfc_order_marks(&list))
        goto done;
    nfc_compose(&list);
    *out = nfc_encode(&list, out_length);
    if (*out != NULL)
        result = SG_NFC_OK;
done:
    if (list.at != list.small)
        syncguard_free(list.at);
    return result;
}

ptrdiff_t syncguard_nfc(const char *text, size_t length, char *out, size_t size)
{
    if (text == NULL || length > SYNCGUARD_MAX_RAW_KEY_BYTES)
        return -1;
    char *nfc = NULL;
    size_t nfc_length = 0;
    if (sg_nfc_alloc(text, length, &nfc, &nfc_length) != SG_NFC_OK)
        return -1;
    ptrdiff_t result = -1;
    if (nfc_length < size) {
        memcpy(out, nfc, nfc_length + 1);
        result = (ptrdiff_t)nfc_length;
    }
    syncguard_free(nfc);
    return result;
}
