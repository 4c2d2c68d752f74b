// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// What errors are about, by ID. An ID that is not listed says nothing of it, and neither does one
// that yodel does not know.
func TestWhatErrorsAreAbout(t *testing.T) {
	const message, connection, client, stale, notRepeated = "message", "connection", "client", "stale", "not repeated"
	about := map[string][]string{
		"YDL1001": {client}, "YDL1002": {client}, "YDL1003": {client}, "YDL1004": {client}, "YDL1005": {client}, "YDL1006": {client}, "YDL1007": {client},
		"YDL1009": {client}, "YDL1010": {client, notRepeated}, "YDL1201": {client}, "YDL1301": {client}, "YDL1401": {client}, "YDL1402": {client}, "YDL2009": {client},
		"YDL1101": {connection}, "YDL1102": {connection}, "YDL1103": {connection}, "YDL1104": {connection, stale}, "YDL1105": {connection}, "YDL1106": {connection},
		"YDL1107": {connection}, "YDL1108": {connection}, "YDL1109": {connection},
		"YDL2101": {message}, "YDL2102": {message}, "YDL2103": {message}, "YDL2104": {message},
		"YDL2201": {message}, "YDL2202": {message}, "YDL2203": {message}, "YDL2204": {message},
		"YDL3004": {stale}, "YDL3005": {stale},
	}
	ids := []string{"", "SHOP7", "YDL", "YDL9999"}
	for n := 1000; n < 6000; n++ {
		ids = append(ids, fmt.Sprintf("YDL%d", n))
	}
	for _, id := range ids {
		e := &yodel.Error{Code: yodel.Unavailable, ID: id}
		var got []string
		for _, trait := range []struct {
			name string
			is   bool
		}{
			{message, e.AboutMessage()}, {connection, e.AboutConnection()}, {client, e.OfClient()}, {stale, e.Stale()}, {notRepeated, e.NotRepeated()},
		} {
			if trait.is {
				got = append(got, trait.name)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(about[id]) {
			t.Errorf("%q: got %v, want %v", id, got, about[id])
		}
	}
}

// Errors that the client itself makes have their traits.
func TestErrorsOfACallSayWhatTheyAreAbout(t *testing.T) {
	c := newClient(t, nil, serve(t, newServer(t, nil)))
	for name, test := range map[string]struct {
		call *yodel.Call
		is   func(e *yodel.Error) bool
	}{
		"a nil request":     {&yodel.Call{Method: "Arith.Mul", Args: (*Args)(nil), Reply: new(Reply)}, (*yodel.Error).AboutMessage},
		"no pointer":        {&yodel.Call{Method: "Arith.Mul", Args: &Args{}, Reply: Reply{}}, (*yodel.Error).AboutMessage},
		"a large request":   {&yodel.Call{Method: "Arith.Mul", Args: strings.Repeat("a", 17<<20)}, (*yodel.Error).AboutMessage},
		"an unknown method": {&yodel.Call{Method: "Arith.Nothing", Args: &Args{}}, func(e *yodel.Error) bool { return !e.AboutMessage() && !e.OfClient() }},
	} {
		err := c.Do(t.Context(), test.call)
		if e, ok := errors.AsType[*yodel.Error](err); !ok || !test.is(e) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
