// SPDX-License-Identifier: Apache-2.0

package protovalidate_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	upstream "buf.build/go/protovalidate"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/middleware/protovalidate"
	"github.com/yodel-rpc/yodel/middleware/protovalidate/internal/testpb"
	"github.com/yodel-rpc/yodel/middleware/validate"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const (
	signUp yodel.Method[testpb.Signup, testpb.Person] = "Club.SignUp"
	upload yodel.Upload[testpb.Person, testpb.Person] = "Club.Upload"
	broken yodel.Method[testpb.Broken, testpb.Person] = "Club.Broken"
	plain  yodel.Method[struct{ N int }, string]      = "Club.Plain"
)

// dial returns a client of a server that validates with rules.
func dial(t *testing.T, o *validate.Options, codec yodel.Codec) *yodel.Client {
	t.Helper()
	s := yodeltest.NewServer(t, &yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec}, Middleware: []yodel.Middleware{validate.With(o)},
	})
	signUp.Handle(s.Server, func(_ context.Context, in *testpb.Signup) (*testpb.Person, error) {
		return &testpb.Person{Name: in.GetEmail(), Age: int32(in.GetFrom())}, nil
	})
	broken.Handle(s.Server, func(context.Context, *testpb.Broken) (*testpb.Person, error) { return new(testpb.Person), nil })
	plain.Handle(s.Server, func(context.Context, *struct{ N int }) (*string, error) { return new(string), nil })
	upload.Handle(s.Server, func(_ context.Context, recv yodel.Recv[testpb.Person]) (*testpb.Person, error) {
		for _, err := range recv {
			if err != nil {
				return nil, err
			}
		}
		return &testpb.Person{Name: "all"}, nil
	})
	return yodeltest.NewClient(t, &yodel.ClientOptions{Codec: codec}, s)
}

var rules = &validate.Options{Rules: []func(any) error{protovalidate.Rules(nil)}, Replies: true}

// wants holds an error to violations.
func wants(t *testing.T, err error, code yodel.Code, want ...validate.Violation) {
	t.Helper()
	if got := validate.Of(err); yodel.CodeOf(err) != code || !slices.Equal(got, want) {
		t.Errorf("got %v with %q, want %v with %q", err, got, code, want)
	}
}

func TestRulesOfProtoFilesArriveAsViolations(t *testing.T) {
	c := dial(t, rules, protobuf.Codec)
	_, err := signUp.Call(t.Context(), c, &testpb.Signup{
		Email: "none", Guests: []*testpb.Person{{Name: "Ann"}, {Name: "Bob", Age: 200}}, From: 3, Until: 1,
	})
	wants(t, err, yodel.InvalidArgument,
		validate.Violation{Rule: "order", Message: "until must be after from"},
		validate.Violation{Field: "email", Rule: "string.email", Message: "must be a valid email address"},
		validate.Violation{Field: "guests[1].age", Rule: "int32.gte_lte", Message: "must be greater than or equal to 0 and less than or equal to 150"},
	)
	if out, err := signUp.Call(t.Context(), c, &testpb.Signup{Email: "a@b.de"}); err != nil || out.GetName() != "a@b.de" {
		t.Errorf("a good request: %v, %v", out, err)
	}
	_, err = signUp.Call(t.Context(), c, &testpb.Signup{Email: "a@b.de", From: 151, Until: 151})
	wants(t, err, yodel.Internal, validate.Violation{Field: "age", Rule: "int32.gte_lte", Message: "must be greater than or equal to 0 and less than or equal to 150"})
}

func TestRulesHoldForEachMessageOfAnUpload(t *testing.T) {
	c := dial(t, rules, protobuf.Codec)
	_, err := upload.Call(t.Context(), c, func(send yodel.Send[testpb.Person]) error {
		return errors.Join(send(&testpb.Person{Name: "a"}), send(&testpb.Person{Name: "b"}), send(&testpb.Person{}))
	})
	wants(t, err, yodel.InvalidArgument, validate.Violation{Field: "name", Rule: "string.min_len", Message: "must be at least 1 characters"})
}

// Rules that cannot be applied are the server's fault.
func TestRulesThatDoNotCompileFailTheCall(t *testing.T) {
	_, err := broken.Call(t.Context(), dial(t, rules, protobuf.Codec), new(testpb.Broken))
	wants(t, err, yodel.Internal)
}

func TestOtherMessagesHaveNoRules(t *testing.T) {
	if _, err := plain.Call(t.Context(), dial(t, rules, nil), &struct{ N int }{1}); err != nil {
		t.Error(err)
	}
}

// A validator of the program's own stops at the first violation.
func TestRulesTakeAValidator(t *testing.T) {
	v, err := upstream.New(upstream.WithFailFast())
	if err != nil {
		t.Fatal(err)
	}
	o := &validate.Options{Rules: []func(any) error{protovalidate.Rules(v)}}
	_, err = signUp.Call(t.Context(), dial(t, o, protobuf.Codec), &testpb.Signup{From: 3, Until: 1})
	if n := len(validate.Of(err)); n != 1 {
		t.Errorf("%d violations: %v", n, err)
	}
}
