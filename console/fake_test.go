// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// A crowd is a reader of a fleet that does not exist: 500 services with 10 instances each.
type crowd struct {
	services, instances int
	client              *yodel.Client
}

func newCrowd(services, instances int) *crowd {
	return &crowd{services, instances, yodel.NewClient(discovery.Static(), nil)}
}

func (c *crowd) Client(string) *yodel.Client { return c.client }
func (c *crowd) Close()                      { c.client.Close() }

func (c *crowd) Read(context.Context, ...string) (*fleet.View, error) {
	v := &fleet.View{At: time.Now()}
	for i := range c.services {
		s := &fleet.Service{Name: fmt.Sprintf("team%02d.Service%03d", i%20, i), State: fleet.Healthy, Up: c.instances}
		s.Versions = []fleet.Version{{Version: "v1", Share: 1}}
		switch {
		case i < 3:
			s.State = fleet.Down
			s.Problems = []fleet.Problem{{Kind: "down", Severity: fleet.Bad, Args: []string{"10", "10", "10.0.0.1:9001: connection refused"}}}
		case i < 20:
			s.State = fleet.Degraded
			s.Problems = []fleet.Problem{{Kind: "failing", Severity: fleet.Warn, Args: []string{"8 %", "unavailable"}}}
		case i%7 == 0:
			s.State = fleet.Idle
		}
		rate := float64(10 + i%90)
		if s.State == fleet.Idle {
			rate = 0
		}
		for j := range c.instances {
			in := &fleet.Instance{Instance: discovery.Instance{Addr: fmt.Sprintf("10.%d.%d.%d:9001", i/250, i%250, j+1), Version: "v1"}, Service: s.Name, State: fleet.Up}
			if i < 3 {
				in.State, in.Why = fleet.Down, "connection refused"
			}
			in.Traffic = traffic(rate/float64(c.instances), i)
			in.Live = &introspect.Live{Now: v.At, Step: time.Second, Name: s.Name, Series: []introspect.Series{series(s.Name+".Get", rate)}}
			s.Instances = append(s.Instances, in)
		}
		s.Traffic = traffic(rate, i)
		s.Methods = []fleet.Method{{Method: introspect.Method{Name: s.Name + ".Get"}, Traffic: s.Traffic}}
		for _, from := range []int{i / 3, i / 5, i / 11} { // a tree with cross links
			if from < i && rate > 0 {
				s.Callers = append(s.Callers, fleet.Caller{Name: fmt.Sprintf("team%02d.Service%03d", from%20, from), Traffic: traffic(rate/3, i)})
			}
		}
		v.Services = append(v.Services, s)
	}
	return v, nil
}

// traffic returns the traffic of service i of a crowd.
func traffic(rate float64, i int) fleet.Traffic {
	t := fleet.Traffic{Known: true, Span: time.Minute, Rate: rate, Step: time.Second, Points: make([]float64, 59)}
	for j := range t.Points {
		t.Points[j] = rate * (1 + float64((i+j)%7)/10)
	}
	if rate > 0 {
		t.P50, t.P90, t.P99 = 2*time.Millisecond, 8*time.Millisecond, 20*time.Millisecond
	}
	if i < 20 && rate > 0 {
		t.Failed, t.Errors = 0.08, map[string]float64{"unavailable": rate * 0.08}
	}
	return t
}

// series returns a minute of calls.
func series(method string, rate float64) introspect.Series {
	s := introspect.Series{Side: "server", Method: method, Peer: "web"}
	for range 60 {
		s.Calls = append(s.Calls, uint64(rate))
		s.P50, s.P90, s.P99 = append(s.P50, 2e6), append(s.P90, 8e6), append(s.P99, 2e7)
	}
	return s
}
