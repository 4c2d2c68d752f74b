// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package live

import "time"

// ProcessorTime returns 0, because only Unix says how much processor time a process has used.
func ProcessorTime() time.Duration { return 0 }
