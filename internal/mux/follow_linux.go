// SPDX-License-Identifier: Apache-2.0

package mux

import "syscall"

// moreFollows tells a socket that another write follows at once.
const moreFollows = syscall.MSG_MORE
