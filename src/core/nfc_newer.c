/*
 * See nfc.h. All characters with a combining class or a canonical
 * decomposition that Unicode 14 to 17 added; utf8proc 2.5, the oldest supported
 * version, knows Unicode 13.
 */
#include "core/nfc.h"

/* Sorted by code point for a binary search. */
static const struct {
    int32_t first;
    int32_t last;
    int class;
} marks[] = {
    {0x897, 0x898, 230},     {0x899, 0x89B, 220},     {0x89C, 0x89F, 230},
    {0x8CA, 0x8CE, 230},     {0x8CF, 0x8D2, 220},     {0xC3C, 0xC3C, 7},
    {0x1715, 0x1715, 9},     {0x1AC1, 0x1AC2, 230},   {0x1AC3, 0x1AC4, 220},
    {0x1AC5, 0x1AC9, 230},   {0x1ACA, 0x1ACA, 220},   {0x1ACB, 0x1ADC, 230},
    {0x1ADD, 0x1ADD, 220},   {0x1AE0, 0x1AE5, 230},   {0x1AE6, 0x1AE6, 220},
    {0x1AE7, 0x1AEA, 230},   {0x1AEB, 0x1AEB, 234},   {0x1DFA, 0x1DFA, 218},
    {0x10D69, 0x10D6D, 230}, {0x10EFA, 0x10EFB, 220}, {0x10EFD, 0x10EFF, 220},
    {0x10F82, 0x10F82, 230}, {0x10F83, 0x10F83, 220}, {0x10F84, 0x10F84, 230},
    {0x10F85, 0x10F85, 220}, {0x11070, 0x11070, 9},   {0x113CE, 0x113D0, 9},
    {0x11F41, 0x11F42, 9},   {0x1612F, 0x1612F, 9},   {0x1E08F, 0x1E08F, 230},
    {0x1E2AE, 0x1E2AE, 230}, {0x1E4EC, 0x1E4ED, 232}, {0x1E4EE, 0x1E4EE, 220},
    {0x1E4EF, 0x1E4EF, 230}, {0x1E5EE, 0x1E5EE, 230}, {0x1E5EF, 0x1E5EF, 220},
    {0x1E6E3, 0x1E6E3, 230}, {0x1E6E6, 0x1E6E6, 230}, {0x1E6EE, 0x1E6EF, 230},
    {0x1E6F5, 0x1E6F5, 230},
};

static const struct {
    int32_t code;
    int32_t halves[2];
} pairs[] = {
    {0x105C9, {0x105D2, 0x0307}},  {0x105E4, {0x105DA, 0x0307}},  {0x11383, {0x11382, 0x113C9}},
    {0x11385, {0x11384, 0x113BB}}, {0x1138E, {0x1138B, 0x113C2}}, {0x11391, {0x11390, 0x113C9}},
    {0x113C5, {0x113C2, 0x113C2}}, {0x113C7, {0x113C2, 0x113B8}}, {0x113C8, {0x113C2, 0x113C9}},
    {0x16121, {0x1611E, 0x1611E}}, {0x16122, {0x1611E, 0x16129}}, {0x16123, {0x1611E, 0x1611F}},
    {0x16124, {0x16129, 0x1611F}}, {0x16125, {0x1611E, 0x16120}}, {0x16126, {0x16121, 0x1611F}},
    {0x16127, {0x16122, 0x1611F}}, {0x16128, {0x16121, 0x16120}}, {0x16D68, {0x16D67, 0x16D67}},
    {0x16D69, {0x16D63, 0x16D67}}, {0x16D6A, {0x16D69, 0x16D67}},
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

int sg_newer_class(int32_t code)
{
    size_t low = 0;
    size_t high = COUNT(marks);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code < marks[middle].first)
            high = middle;
        else if (code > marks[middle].last)
            low = middle + 1;
        else
            return marks[middle].class;
    }
    return 0;
}

bool sg_newer_split(int32_t code, int32_t halves[2])
{
    if (code < pairs[0].code)
        return false;
    for (size_t i = 0; i < COUNT(pairs); i++) {
        if (pairs[i].code == code) {
            halves[0] = pairs[i].halves[0];
            halves[1] = pairs[i].halves[1];
            return true;
        }
    }
    return false;
}

int32_t sg_newer_join(int32_t first, int32_t second)
{
    if (first < pairs[0].code)
        return 0;
    for (size_t i = 0; i < COUNT(pairs); i++) {
        if (pairs[i].halves[0] == first && pairs[i].halves[1] == second)
            return pairs[i].code;
    }
    return 0;
}
