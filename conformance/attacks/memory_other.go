// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package attacks

import (
	"errors"
	"time"
)

const measurable = false

func limitAddressSpace(uint64) error { return errors.ErrUnsupported }

func raiseFileLimit() {}

func processorTime() time.Duration { return 0 }

func stolenTime() time.Duration { return 0 }

func residentMemory(int) (now, peak int64, err error) { return 0, 0, errors.ErrUnsupported }

func resetPeak(int) error { return errors.ErrUnsupported }
