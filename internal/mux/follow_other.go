// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package mux

// moreFollows tells a socket that another write follows at once, where there is a way to say so.
const moreFollows = 0
