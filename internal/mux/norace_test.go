// SPDX-License-Identifier: Apache-2.0

//go:build !race

package mux_test

// raceEnabled says that the race detector is on, which makes everything several times slower.
const raceEnabled = false
