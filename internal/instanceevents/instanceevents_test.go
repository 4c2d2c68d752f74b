// SPDX-License-Identifier: Apache-2.0

package instanceevents_test

import (
	"fmt"
	"testing"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/instanceevents"
)

func TestOf(t *testing.T) {
	const some = "10.0.0.0:1, 10.0.0.1:1, 10.0.0.2:1 and others: "
	for _, test := range []struct {
		kind, service string
		n, disabled   int // the last ones are disabled
		want          []string
	}{
		{instanceevents.Up, "Shop", 2, 1, []string{"10.0.0.0:1 an instance of Shop: the resolver names it", "10.0.0.1:1 an instance of Shop: the resolver names it"}},
		{instanceevents.Down, "", 2, 1, []string{"10.0.0.0:1 an instance: it has left", "10.0.0.1:1 an instance: it is disabled"}},
		{instanceevents.Up, "Shop", 9, 9, []string{"Shop 9 instances of Shop: " + some + "the resolver names them"}},
		{instanceevents.Down, "Shop", 9, 0, []string{"Shop 9 instances of Shop: " + some + "they have left"}},
		{instanceevents.Down, "Shop", 9, 4, []string{"Shop 9 instances of Shop: " + some + "4 are disabled, the others have left"}},
		{instanceevents.Down, "Shop", 9, 9, []string{"Shop 9 instances of Shop: " + some + "they are disabled"}},
		{instanceevents.Down, "", 9, 9, []string{" 9 instances: " + some + "they are disabled"}},
		{instanceevents.Down, "Shop", 0, 0, nil},
	} {
		instances := make([]*discovery.Instance, test.n)
		for i := range instances {
			instances[i] = &discovery.Instance{Addr: fmt.Sprintf("10.0.0.%d:1", i)}
			if i >= test.n-test.disabled {
				instances[i].State = discovery.Inactive
			}
		}
		var got []string
		for _, e := range instanceevents.Of(test.kind, test.service, instances) {
			if e.Kind != test.kind || e.By != "resolver" {
				t.Errorf("got the event %+v", e)
			}
			got = append(got, e.Object+" "+e.What)
		}
		if fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%d instances, %d of them disabled: got %q, want %q", test.n, test.disabled, got, test.want)
		}
	}
}

func TestOfReadiness(t *testing.T) {
	for ready, want := range map[bool]string{
		true:  "ready 10.0.0.1:1 no longer held back breaker",
		false: "not ready 10.0.0.1:1 gets no calls while others are ready breaker",
	} {
		e := instanceevents.OfReadiness("10.0.0.1:1", "breaker", ready)
		if got := fmt.Sprint(e.Kind, " ", e.Object, " ", e.What, " ", e.By); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
