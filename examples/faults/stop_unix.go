// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import "syscall"

// stopped has a server stand still for as long as the fault lasts: its connections stay, and nobody
// answers.
func stopped(number int, s server) []fault {
	return []fault{{"stopped", number, s.signal(syscall.SIGSTOP), s.signal(syscall.SIGCONT)}}
}
