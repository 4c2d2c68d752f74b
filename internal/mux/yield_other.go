// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package mux

// yieldProcessor would let other threads run. Elsewhere than on Linux the goroutines' turns have to
// do.
func yieldProcessor() {}
