// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"reflect"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

var (
	randomRequests = flag.Int("gateway.random", 400, "how many random requests both servers get")
	every          = flag.Int("gateway.every", 24, "one in how many of the systematic values of the largest messages they get")
)

// names are the names of codes in Google's APIs.
var names = map[string]int{
	"CANCELLED": 1, "UNKNOWN": 2, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5, "ALREADY_EXISTS": 6, "PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8,
	"FAILED_PRECONDITION": 9, "ABORTED": 10, "OUT_OF_RANGE": 11, "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14, "DATA_LOSS": 15, "UNAUTHENTICATED": int(codes.Unauthenticated),
}

// differs returns what differs between two answers, or "".
func differs(r request, gateway, ours answer) string {
	switch {
	case gateway.status != ours.status:
		return "status"
	case gateway.method != ours.method:
		return "method"
	case gateway.method != "" && !proto.Equal(gateway.request, ours.request):
		return "request"
	case gateway.status != 200 && gateway.code != ours.code:
		return "code"
	case gateway.media != ours.media && r.verb != "HEAD":
		return "content type"
	case gateway.status == 200 && !sameJSON(gateway.body, ours.body):
		return "response"
	}
	return ""
}

// sameJSON compares two responses as values of JSON.
func sameJSON(a, b string) bool {
	parse := func(text string) (value any) {
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		d.UseNumber()
		if err := d.Decode(&value); err != nil {
			return text
		}
		return value
	}
	return a == b || reflect.DeepEqual(parse(a), parse(b))
}

// Both servers answer each request in the same way, or the difference is in the table.
func TestSameAnswersAsGRPCGateway(t *testing.T) {
	requests := generate(routesOf(files), *every, *randomRequests)
	if len(requests) < 10000 {
		t.Errorf("there are %d requests, want 10,000", len(requests))
	}
	gateway, ours := serveGateway(t), serveYodel(t)
	found := make([]int, len(differences))
	unknown := 0
	for _, r := range requests {
		var theirs answer
		var failed error
		var asked sync.WaitGroup
		asked.Go(func() { theirs, failed = gateway.do(r) })
		own, err := ours.do(r)
		asked.Wait()
		if err = errors.Join(failed, err); err != nil {
			t.Fatal(err)
		}
		what := differs(r, theirs, own)
		if what == "" {
			if theirs.status != 200 && explain(r, theirs, own, form) == 0 {
				found[0]++
			}
			continue
		}
		if i := explain(r, theirs, own, what); i >= 0 {
			found[i]++
			continue
		}
		if unknown++; unknown <= 20 {
			t.Errorf("%s: another %s:\n\tgateway %d %s %v %s\n\tours    %d %s %v %s", r, what,
				theirs.status, theirs.method, theirs.request, theirs.body, own.status, own.method, own.request, own.body)
		}
	}
	for i, n := range found {
		if n == 0 && differences[i].is != nil {
			t.Errorf("no request shows this difference any more: %s", differences[i].row)
		}
	}
	t.Logf("%d requests, %d without an explained difference, %v of each", len(requests), unknown, found)
}
