// SPDX-License-Identifier: Apache-2.0

package main

import "errors"

func (r *Report) writePage(dir string) error { return errors.New("not yet") }
