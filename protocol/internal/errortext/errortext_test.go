// SPDX-License-Identifier: Apache-2.0

package errortext_test

import (
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/errortext"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestTexts(t *testing.T) {
	for _, test := range []struct {
		e    yodel.Error
		text string
		back yodel.Error
	}{
		{yodel.Error{Code: yodel.Unknown, Message: "no: such thing"}, "no: such thing", yodel.Error{Code: yodel.Unknown, Message: "no: such thing"}},
		{yodel.Error{Code: yodel.Unknown, Message: " "}, "error", yodel.Error{Code: yodel.Unknown, Message: "error"}},
		{yodel.Error{Code: yodel.NotFound, Message: "no x", ID: "ID1"}, "not_found: no x [ID1]", yodel.Error{Code: yodel.NotFound, Message: "no x [ID1]"}},
		{
			yodel.Error{Code: yodel.Unimplemented, Message: "x", NotProcessed: true}, "rpc: can't find service A.B",
			yodel.Error{Code: yodel.Unimplemented, Message: "rpc: can't find service A.B", NotProcessed: true},
		},
		{yodel.Error{Code: yodel.Unknown, Message: "ok: well"}, "ok: well", yodel.Error{Code: yodel.Unknown, Message: "ok: well"}},
	} {
		text := errortext.Format("A.B", &test.e)
		if text != test.text {
			t.Errorf("%v: got %q, want %q", &test.e, text, test.text)
		}
		if e := errortext.Parse(text); e.Code != test.back.Code || e.Message != test.back.Message || e.NotProcessed != test.back.NotProcessed {
			t.Errorf("%q: got %v, want %v", text, e, &test.back)
		}
	}
}
