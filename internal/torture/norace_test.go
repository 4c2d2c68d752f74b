// SPDX-License-Identifier: Apache-2.0

//go:build !race

package torture_test

// raceEnabled is whether the race detector is on, which makes memory several times larger.
const raceEnabled = false
