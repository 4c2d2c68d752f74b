// SPDX-License-Identifier: Apache-2.0

//go:build !race

package yodel_test

// raceEnabled says that the race detector is on, which allocates on its own account.
const raceEnabled = false

// fewer returns how often a test repeats something: n, and with the race detector n/by.
func fewer(n, _ int) int { return n }
