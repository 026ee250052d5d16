/* See nfc_newer.h. */
#include "core/nfc_newer.h"

int sg_newer_class(int32_t code)
{
    (void)code;
    return 0;
}
bool sg_newer_split(int32_t code, int32_t halves[2])
{
    (void)code;
    (void)halves;
    return false;
}
int32_t sg_newer_join(int32_t first, int32_t second)
{
    (void)first;
    (void)second;
    return 0;
}
