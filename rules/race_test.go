// SPDX-License-Identifier: Apache-2.0

//go:build race

package rules_test

// fewer returns how often a test repeats something: n, and with the race detector n/by. The step
// without it runs the test with n.
func fewer(n, by int) int { return n / by }
