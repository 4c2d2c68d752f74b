// SPDX-License-Identifier: Apache-2.0

//go:build !linux || indirect

package socket

import "time"

// napping says whether a thread can sleep until a socket has data to read.
const napping = false

func nap(uintptr, time.Duration) bool { panic("socket: no nap on this system") }
