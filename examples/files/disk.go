// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/yodel-rpc/yodel"
)

func irregular(name string) error {
	return yodel.Errorf(yodel.InvalidArgument, "%q is not a regular file", name)
}

// diskError gives an error of the file system the code that the other side should see.
func diskError(err error) error {
	var code yodel.Code
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		code = yodel.NotFound
	case errors.Is(err, fs.ErrPermission):
		code = yodel.PermissionDenied
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = yodel.ResourceExhausted
	default:
		code = yodel.Internal
	}
	return yodel.Errorf(code, "%w", err)
}
