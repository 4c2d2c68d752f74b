// SPDX-License-Identifier: Apache-2.0

//go:build !race

package httplink

// raceEnabled says that the race detector is on, which allocates on its own account.
const raceEnabled = false
