/* Fences: fifteen digits, so that texts sort like the numbers. */
#include "syncguard/sys/fail.h"
#include "syncguard/sys/names.h"

#define LARGEST INT64_C(999999999999999)

syncguard_status syncguard_fence_format(int64_t value, char out[SYNCGUARD_FENCE_SIZE],
                                        syncguard_error *err)
{
    if (value < 0 || value > LARGEST) {
        out[0] = '\0';
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "a fence has 15 digits: the value is negative or too large");
    }
    for (int i = SYNCGUARD_FENCE_DIGITS - 1; i >= 0; i--) {
        out[i] = (char)('0' + value % 10);
        value /= 10;
    }
    out[SYNCGUARD_FENCE_DIGITS] = '\0';
    return SYNCGUARD_OK;
}

bool syncguard_fence_valid(const char *text)
{
    if (text == NULL)
        return false;
    for (int i = 0; i < SYNCGUARD_FENCE_DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
    }
    return text[SYNCGUARD_FENCE_DIGITS] == '\0';
}

bool syncguard_fence_parse(const char *text, int64_t *value)
{
    int64_t number = 0;
    int i = 0;
    for (; i < SYNCGUARD_FENCE_DIGITS && text[i] >= '0' && text[i] <= '9'; i++)
        number = number * 10 + (text[i] - '0');
    if (i == 0 || text[i] != '\0')
        return false;
    *value = number;
    return true;
}

syncguard_status syncguard_fence_next(int64_t current, int64_t *next, syncguard_error *err)
{
    if (current < 0)
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "the fence counter is unreadable");
    if (current >= SYNCGUARD_FENCE_MAX)
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL,
                              "the fence counter has reached its limit");
    *next = current + 1;
    return SYNCGUARD_OK;
}
