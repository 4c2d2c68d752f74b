// SPDX-License-Identifier: Apache-2.0

// Package oneofenum is what generate writes.
package oneofenum
