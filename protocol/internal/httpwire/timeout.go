// SPDX-License-Identifier: Apache-2.0

package httpwire

import (
	"errors"
	"strconv"
	"time"
)

var errTimeout = errors.New("the timeout is malformed")

// units are the units of grpc-timeout.
var units = map[byte]time.Duration{
	'n': time.Nanosecond, 'u': time.Microsecond, 'm': time.Millisecond, 'S': time.Second, 'M': time.Minute, 'H': time.Hour,
}

// ParseTimeout parses the header grpc-timeout: at most 8 digits and a unit. For an empty string,
// and for more than 100 years, it returns 0, which means no timeout.
func ParseTimeout(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	unit, known := units[s[len(s)-1]]
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 32)
	if !known || err != nil || len(s) > 9 {
		return 0, errTimeout
	}
	return within(n, unit), nil
}

// ParseMillis parses the header connect-timeout-ms: at most 10 digits. It returns 0 as
// ParseTimeout. It adds almost a millisecond, because clients round down: otherwise the server
// would answer just before its client gives up.
func ParseMillis(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || len(s) > 10 {
		return 0, errTimeout
	}
	if d := within(n, time.Millisecond); d > 1 {
		return d + time.Millisecond - 1, nil
	}
	return within(n, time.Millisecond), nil
}

// within returns n units. A timeout of 0 becomes a nanosecond, because 0 means none.
func within(n uint64, unit time.Duration) time.Duration {
	const far = 100 * 365 * 24 * time.Hour
	if n > uint64(far/unit) { //nolint:gosec // it is positive
		return 0
	}
	return max(time.Duration(n)*unit, 1) //nolint:gosec // it is at most far
}

// Timeout returns the value of the header grpc-timeout, which is at least 1 ns.
func Timeout(d time.Duration) string {
	d = max(d, 1)
	const most = 99_999_999
	for _, unit := range []byte("numSMH") {
		if n := int64((d + units[unit] - 1) / units[unit]); n <= most {
			return strconv.FormatInt(n, 10) + string(unit)
		}
	}
	return strconv.Itoa(most) + "H"
}

// Millis returns the value of the header connect-timeout-ms, which is at least 1 ms.
func Millis(d time.Duration) string {
	return strconv.FormatInt(min(max(d.Milliseconds(), 1), 9_999_999_999), 10)
}
