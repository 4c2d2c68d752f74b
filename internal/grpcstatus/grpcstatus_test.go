// SPDX-License-Identifier: Apache-2.0

package grpcstatus_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/yodel-rpc/yodel/internal/grpcstatus"
)

type (
	code   uint32
	detail struct{ url, value string }
	// A status is one of grpc-go's, and its message of Protocol Buffers.
	status struct {
		code    code
		details []detail
	}
	statusError[S any] struct{ status S }
)

func (s *status) Code() code           { return s.code }
func (s *status) Message() string      { return fmt.Sprint("text ", s.code) }
func (s *status) Proto() *status       { return s }
func (s *status) GetDetails() []detail { return s.details }
func (d detail) GetTypeUrl() string    { return d.url } //nolint:revive // the name of generated code
func (d detail) GetValue() []byte      { return []byte(d.value) }

func (e statusError[S]) Error() string { return "rpc error" }
func (e statusError[S]) GRPCStatus() S { return e.status }

// Other methods of that name.
type (
	withParameter struct{ error }
	withoutResult struct{ error }
)

func (withParameter) GRPCStatus(context.Context) *status { return &status{code: 5} }
func (withoutResult) GRPCStatus()                        {}

func TestStatuses(t *testing.T) {
	found := statusError[*status]{&status{5, []detail{{"type.googleapis.com/a.B", "x"}, {"c.D", ""}}}}
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, "none"},
		{io.EOF, "none"},
		{fmt.Errorf("no: %w", io.EOF), "none"},
		{found, "5 text 5 true a.B=x c.D="},
		{fmt.Errorf("not here: %w", found), "5 text 5 false a.B=x c.D="},
		{errors.Join(io.EOF, fmt.Errorf("not here: %w", found), statusError[*status]{&status{code: 6}}), "5 text 5 false a.B=x c.D="},
		{statusError[*status]{&status{code: 0}}, "2 text 0 true"},
		{statusError[*status]{&status{code: 16}}, "16 text 16 true"},
		{statusError[*status]{&status{code: 42}}, "42 text 42 true"},
		{statusError[*status]{&status{code: 256 + 5}}, "261 text 261 true"},
		{statusError[*status]{&status{code: 1 << 16}}, "2 text 65536 true"},
		{statusError[*status]{}, "none"},
		{statusError[error]{}, "none"},
		{statusError[int]{7}, "none"},
		{statusError[any]{&status{code: 9}}, "none"}, // an any has no methods
		{statusError[interface{ Message() string }]{&status{code: 9}}, "none"},
		{withParameter{io.EOF}, "none"},
		{withoutResult{io.EOF}, "none"},
	} {
		got := "none"
		if s := grpcstatus.Of(test.err); s != nil {
			got = fmt.Sprint(s.Code, " ", s.Message, " ", s.Own)
			s.Details(func(name string, value []byte) { got += fmt.Sprintf(" %s=%s", name, value) })
		}
		if got != test.want {
			t.Errorf("%#v: got %s, want %s", test.err, got, test.want)
		}
	}
}

func TestNamesOfCodes(t *testing.T) {
	for code, want := range map[uint16]string{0: "ok", 5: "not_found", 16: "unauthenticated", 17: "code_17", 65535: "code_65535"} {
		name := grpcstatus.CodeName(code)
		if again, err := grpcstatus.CodeNamed(name); name != want || again != code || err != nil {
			t.Errorf("the name of %d is %s, which is that of %d, %v", code, name, again, err)
		}
	}
	for _, name := range []string{"", "NotFound", "code_", "code_5", "code_65536", "code_-1", "code_+42"} {
		if code, err := grpcstatus.CodeNamed(name); err == nil {
			t.Errorf("%q is the name of %d", name, code)
		}
	}
}

// An error without a status is looked at for each failed call.
func TestOtherErrorsCostNoMemory(t *testing.T) {
	err := fmt.Errorf("no: %w", context.DeadlineExceeded)
	if n := testing.AllocsPerRun(100, func() { grpcstatus.Of(err) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkOtherErrors(b *testing.B) {
	err := fmt.Errorf("no: %w", context.DeadlineExceeded)
	for b.Loop() {
		grpcstatus.Of(err)
	}
}
