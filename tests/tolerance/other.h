/* Included before everything else: the library as it would be with another tolerance. */
#include "syncguard/types.h"

#undef SYNCGUARD_TIME_TOLERANCE_MS
#define SYNCGUARD_TIME_TOLERANCE_MS 2000
