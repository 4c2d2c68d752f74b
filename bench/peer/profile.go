// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
)

// profile writes a CPU profile of the program to the file that PEER_PROFILE names, with the role
// behind it:
//
//	PEER_PROFILE=/tmp/yodel yodel load
//	go tool pprof -top /tmp/yodel.load
func profile(role string) (stop func() error, err error) {
	name := os.Getenv("PEER_PROFILE")
	if name == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(name + "." + role)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}
