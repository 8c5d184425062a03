// The macro of functions on registers: their arguments must never go through memory.
#pragma once

#define REDOUBT_INLINE [[gnu::always_inline]] inline
