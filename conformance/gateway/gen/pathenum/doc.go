// SPDX-License-Identifier: Apache-2.0

// Package pathenum is what generate writes.
package pathenum
