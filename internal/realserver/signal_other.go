// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package realserver

import (
	"errors"
	"os"
)

func suspend(*os.Process) error { return errors.ErrUnsupported }

func resume(*os.Process) error { return errors.ErrUnsupported }
