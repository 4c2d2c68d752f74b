// SPDX-License-Identifier: Apache-2.0

package jsoncodec_test

import (
	"errors"
	"testing"

	"github.com/yodel-rpc/yodel/internal/jsoncodec"
)

func TestCallersSeeNoTypesInErrorsOfEncoders(t *testing.T) {
	const hidden = "Shop.Order: a message could not be encoded"
	for text, want := range map[string]string{
		"json: interface {}: chan shop.item: a chan cannot be encoded": hidden,
		"gob: type order has no exported fields":                       hidden,
		"msgpack: order.Qty is out of range":                           hidden,
		"thrift: a field of the type []int has no number":              hidden,
		"it has a nil *Order":                                          hidden,
		"it has a func() inside":                                       hidden,
		"json: unsupported value: NaN":                                 "",
		"the reply has an attachment, which HTTP cannot carry":         "",
		"the method returns 2 values, and Thrift has one result.":      "",
	} {
		if got := jsoncodec.Public("Shop.Order", true, errors.New(text)); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
