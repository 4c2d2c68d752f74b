// SPDX-License-Identifier: Apache-2.0

//go:build race

package everywhere

// raceEnabled says that the race detector is on.
const raceEnabled = true
