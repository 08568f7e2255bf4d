/* context.h - which context is current in a thread. A context is a device here: each
 * thread has a stack of them, and the runtime's current device is the one on top. All
 * functions need the lock. */
#ifndef FAKECUDA_CONTEXT_H
#define FAKECUDA_CONTEXT_H

#include "fake.h"

/* The device's primary context is on top in place of what was there. */
void
fake_context_choose_locked(int device);

void
fake_context_reset_locked(void);

#endif
