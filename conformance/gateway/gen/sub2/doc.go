// SPDX-License-Identifier: Apache-2.0

// Package sub2 is what generate writes.
package sub2
