// SPDX-License-Identifier: Apache-2.0

//go:build !race

package overload_test

// raceEnabled is whether the race detector is on, which makes everything several times slower.
const raceEnabled = false
