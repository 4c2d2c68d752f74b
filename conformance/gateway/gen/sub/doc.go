// SPDX-License-Identifier: Apache-2.0

// Package sub is what generate writes.
package sub
