// SPDX-License-Identifier: Apache-2.0

// Package shapes is what generate writes.
package shapes
