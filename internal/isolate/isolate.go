// SPDX-License-Identifier: Apache-2.0

// Package isolate calls the code of users so that it can neither end the process nor the goroutine
// of the caller. It is for code that is called rarely, because each call takes a goroutine.
package isolate

// Call calls f on a new goroutine, waits until f has ended, and returns its error. If f panics with
// a value, Call returns the result of failed for that value. If f ends its goroutine, the value is
// nil. Failed runs on the goroutine of f, where the stack of the panic can still be read. It must
// not panic.
func Call(f func() error, failed func(value any) error) error {
	_, err := Until(nil, f, failed)
	return err
}

// Until is Call, except that it stops waiting when release is closed. It reports whether f has
// ended. If f has not ended, f continues, and its outcome is discarded.
func Until(release <-chan struct{}, f func() error, failed func(value any) error) (ended bool, err error) {
	outcome := make(chan error, 1)
	go func() {
		returned, err := false, error(nil)
		defer func() {
			if value := recover(); !returned {
				err = failed(value)
			}
			outcome <- err
		}()
		err = f()
		returned = true
	}()
	select {
	case err := <-outcome:
		return true, err
	case <-release:
		return false, nil
	}
}
