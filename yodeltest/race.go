// SPDX-License-Identifier: Apache-2.0

//go:build race

package yodeltest

// raceEnabled says that the race detector is on, with which some libraries need a minute for the
// parts of a value that a second is enough for without it.
const raceEnabled = true
