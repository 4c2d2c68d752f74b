// SPDX-License-Identifier: Apache-2.0

package yodel

// A Detail is a typed value that an error carries for the caller's program.
type Detail struct {
	// Type names the type of the value, for example "shop.v1.OutOfStock". Both sides have to know
	// it.
	Type string `json:"type"`
	// Value is the encoded value. The two programs agree on its encoding.
	Value []byte `json:"value,omitempty"`
}

// eachDetail calls yield for each detail.
func (e *Error) eachDetail(yield func(name string, value []byte) bool) {
	for i := 0; i < len(e.Details) && yield(e.Details[i].Type, e.Details[i].Value); {
		i++
	}
}

func (e *Error) addDetail(name string, value []byte) {
	e.Details = append(e.Details, Detail{name, value})
}
