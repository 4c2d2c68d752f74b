// SPDX-License-Identifier: Apache-2.0

//go:build !race

package overload_test

import "time"

// takes is how long a call holds its slot.
const takes = 5 * time.Millisecond
