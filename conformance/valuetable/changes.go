// SPDX-License-Identifier: Apache-2.0

package valuetable

import "maps"

// Changes has the values that arrive as other ones, by codec.
var Changes = map[string]map[string]string{
	"JSON": with(unexported, inInterfaces, map[string]string{
		"pointer to a nil slice": asNil, "pointer to a nil pointer": asNil,
		"unexported field with a tag": "without the field",
		"*big.Float":                  "with a precision of 64",
		"time.Time, in an interface":  asText,
		"netip.Addr, in an interface": asText, "a UUID, in an interface": asText, "a decimal, in an interface": asText,
		"a type with MarshalJSON only, in an interface": "as a float64",
		"a type with MarshalText only, in an interface": asText,
		"time.Duration, in an interface":                "as a float64",
		"an interface with an int":                      "as a float64",
		"an interface with a uintptr":                   "as a float64",
		"json.RawMessage, nil":                          "as null",
		"json.RawMessage, with spaces":                  "without the spaces",

		"a type that MarshalJSON writes as null, behind a pointer": asNil,
	}),
	"gob": with(unexported, map[string]string{
		"negative zero": "as 0", "empty slice": asNil, "empty []byte": asNil, "pointer to a nil pointer": asNil,
		"unexported field with a tag": "without the field",
		"nil map, the whole message":  asEmpty, "nil among maps": asEmpty,
	}),
	"msgpack": with(unexported, inInterfaces, map[string]string{
		"pointer to a nil slice": asNil, "pointer to a nil pointer": asNil, "time.Time, with an offset": "in local time",
		"time.Duration, in an interface": "as an int64", "*big.Float": "with a precision of 64",
		"netip.Addr, in an interface": asBytes, "a UUID, in an interface": asBytes, "a decimal, in an interface": asBytes,
		"a type with MarshalText only, in an interface": asBytes, "a type with MarshalBinary only, in an interface": asBytes,
		"an interface with an int": "as an int8", "an interface with an empty json.Number": asText,
		"time.Time, with seconds in its offset": "in local time",
	}),
	"hessian2": with(unexported, inInterfaces, map[string]string{
		"pointer to a nil slice": asNil, "pointer to a nil pointer": asNil,
		"time.Time": ofMillis, "time.Time, in a slice": ofMillis, "time.Time, in a map": ofMillis, "time.Time, behind a pointer": ofMillis,
		"time.Time, in an interface": ofMillis, "time.Time, the whole message": ofMillis,
		"time.Time, with an offset": inUTC, "time.Time, a pointer to zero": asNil,
		"time.Duration, in an interface": "as an int64", "a UUID, in an interface": "as a list",
		"an interface with an int": "as an int64", "an interface with an empty json.Number": asText,
		"time.Time, with seconds in its offset": inUTC,
	}),
	"thrift": with(unexported, map[string]string{
		"nil among slices": asEmpty, "pointer to a nil slice": asEmpty,
		"nil map, the whole message": asEmpty, "nil among maps": asEmpty,
	}),
	"pbstruct": with(unexported, map[string]string{
		"empty slice": asNil, "empty map": asNil, "empty []byte": asNil, "time.Time, with an offset": inUTC,
		"time.Time, with seconds in its offset": inUTC,
	}),
}

const (
	asNil    = "as nil"
	asEmpty  = "as an empty one"
	asText   = "as a string"
	asBytes  = "as []byte"
	ofMillis = "to the millisecond"
	inUTC    = "in UTC"
)

var (
	unexported = map[string]string{
		"unexported field": "without the field", "unexported field with a struct": "without the field",
	}
	inInterfaces = map[string]string{"an interface with a struct": "as a map"}
)

func with(all ...map[string]string) map[string]string {
	sum := make(map[string]string)
	for _, m := range all {
		maps.Copy(sum, m)
	}
	return sum
}
