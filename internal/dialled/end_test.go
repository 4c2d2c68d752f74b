// SPDX-License-Identifier: Apache-2.0

package dialled_test

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/dialled"
	"github.com/yodel-rpc/yodel/internal/endpoints"
	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/mux"
)

func TestARefusalDoesNotMeanThatTheNetworkBroke(t *testing.T) {
	for _, test := range []struct {
		err   error
		broke bool
	}{
		{nil, true},
		{errors.New("reset"), true},
		{fmt.Errorf("it said: %w", &mux.Refusal{}), false},
		{&mux.PrefaceError{}, false},
		{&firstbytes.MismatchError{}, false},
		{&mux.ProtocolError{}, false},
	} {
		end := dialled.Complete(endpoints.End{Err: test.err, Worked: true})
		if end.Broke != test.broke || !end.Worked || end.Err == nil || test.err == nil && !errors.Is(end.Err, mux.ErrDrained) {
			t.Errorf("%v: got %+v, want that it broke: %v", test.err, end, test.broke)
		}
	}
}

func TestASilentServerIsAskedForALine(t *testing.T) {
	preface := &mux.PrefaceError{}
	for _, test := range []struct {
		name    string
		reads   bool
		answers error // nil if the server stays silent
		want    error
		took    time.Duration
	}{
		{"a server of HTTP answers", true, preface, preface, 0},
		{"a server refuses", true, &mux.Refusal{}, mux.ErrHandshake, 0},
		{"a server stays silent", true, nil, mux.ErrHandshake, 50 * time.Millisecond},
		{"a server does not read", false, preface, mux.ErrHandshake, 50 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				defer here.Close()
				defer there.Close()
				answered := make(chan struct{})
				if test.reads {
					go func() {
						b := make([]byte, 4)
						if _, err := there.Read(b); err != nil || string(b) != "\r\n\r\n" {
							t.Errorf("the server got %q, %v", b, err)
						}
						if test.answers != nil {
							close(answered)
						}
					}()
				}
				began := time.Now()
				err := dialled.Silence(here, answered, func() error { return test.answers })
				if took := time.Since(began); !errors.Is(err, test.want) || took != test.took {
					t.Errorf("got %v after %v, want %v after %v", err, took, test.want, test.took)
				}
			})
		})
	}
}
