// SPDX-License-Identifier: Apache-2.0

//go:build !race

package yodel

// poison makes the use of a Call after its end visible. It is true under the race detector: see
// outgoing.reset.
const poison = false
