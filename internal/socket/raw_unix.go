// SPDX-License-Identifier: Apache-2.0

//go:build unix && !indirect && (!linux || race || 386 || s390x)

package socket

import "syscall"

// Package syscall tells the race detector of what is read and written. The calls of raw_linux.go
// are not among the system calls of all processors.

func read(fd uintptr, p []byte) (int, error) { return syscall.Read(int(fd), p) }

func write(fd uintptr, p []byte) (int, error) { return syscall.Write(int(fd), p) }
