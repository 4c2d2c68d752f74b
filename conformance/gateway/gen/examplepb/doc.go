// SPDX-License-Identifier: Apache-2.0

// Package examplepb is what generate writes.
package examplepb
