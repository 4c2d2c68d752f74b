// SPDX-License-Identifier: Apache-2.0

package gobwire

import (
	"encoding"
	"encoding/gob"
	"fmt"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/nesting"
)

var nested = nesting.Rules{
	Methods: []reflect.Type{reflect.TypeFor[gob.GobEncoder](), reflect.TypeFor[encoding.BinaryMarshaler]()},
}

// CheckNesting returns an error if encoding/gob would need too much stack to encode v, because v is
// nested too deep or contains itself.
func CheckNesting(v any) error {
	if err := nested.Check(v); err != nil {
		return fmt.Errorf("gob: %w", err)
	}
	return nil
}
