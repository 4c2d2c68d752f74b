// SPDX-License-Identifier: Apache-2.0

package testthrift

import "github.com/yodel-rpc/yodel"

// Unwrap gives the exception a code, if it is about rain.
func (p *Dry) Unwrap() error {
	if p.Reason == "rain" {
		return yodel.FailedPrecondition
	}
	return nil
}
