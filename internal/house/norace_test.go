// SPDX-License-Identifier: Apache-2.0

//go:build !race

package house

const raceEnabled = false
