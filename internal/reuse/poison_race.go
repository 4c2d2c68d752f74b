// SPDX-License-Identifier: Apache-2.0

//go:build race

package reuse

// Poison makes the use of a call's memory after the end of the call visible: calls are not reused,
// and buffers are overwritten. It is true under the race detector.
const Poison = true
