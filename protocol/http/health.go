// SPDX-License-Identifier: Apache-2.0

package http

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/protowire"
)

// This file serves the health protocol of gRPC. Its messages are encoded by hand, because the
// package depends on the standard library alone.

const (
	healthService = "grpc.health.v1.Health"
	watchMethod   = healthService + "/Watch"
)

// Statuses of services, as ProtoJSON has them.
const (
	serving    = "SERVING"
	notServing = "NOT_SERVING"
	noService  = "SERVICE_UNKNOWN"
)

// statusNumbers are their numbers in Protocol Buffers.
var statusNumbers = map[string]byte{serving: 1, notServing: 2, noService: 3}

// RegisterHealth registers the service grpc.health.v1.Health with the methods Check, Watch and
// List, which load balancers, Kubernetes and clients of gRPC call:
//
//	s := yodel.NewServer(&yodel.ServerOptions{Codecs: …, Protocols: []yodel.Protocol{http.New(nil)}})
//	err := http.RegisterHealth(s)
//
// The empty name means the whole server. A service that the server has a method of is SERVING while
// the server is ready (see yodel.Server.Ready), and NOT_SERVING otherwise. Check of another service
// fails with NotFound, and Watch reports SERVICE_UNKNOWN. Watch reports the status at once, and a
// change within a second. It reports NOT_SERVING before the server sends GOAWAY, and then ends with
// Unavailable. It reports a service that is registered later only to new watchers.
//
// The messages are encoded in the codec of the call, also without package codec/protobuf.
// RegisterHealth fails if one of the methods is registered already.
func RegisterHealth(s *yodel.Server) error {
	h := health{s}
	return errors.Join(
		s.HandleCall(healthService+"/Check", h.check),
		s.HandleCall(healthService+"/List", h.list),
		s.HandleStream(watchMethod, "feed", h.watch),
	)
}

type health struct{ server *yodel.Server }

// statusOf returns the status of a service, or of the server if service is empty.
func (h health) statusOf(call *yodel.Call, service string) string {
	if service != "" && !slices.Contains(h.server.Services(), service) {
		return noService
	}
	return h.serverStatus(call)
}

// serverStatus returns the status of the server that executes a call.
func (h health) serverStatus(call *yodel.Call) string {
	select {
	case <-call.Draining():
		return notServing
	default:
	}
	if h.server.Ready() != nil {
		return notServing
	}
	return serving
}

func (h health) check(_ context.Context, call *yodel.Call) error {
	service, err := asked(call)
	if err != nil {
		return err
	}
	status := h.statusOf(call, service)
	if status == noService {
		return yodel.Errorf(yodel.NotFound, "the server has no service %.100q", service)
	}
	call.Reply = replyOf(call, healthStatus{status})
	return nil
}

func (h health) watch(ctx context.Context, call *yodel.Call, _, send func(any) error) error {
	service, err := asked(call)
	if err != nil {
		return err
	}
	again := time.NewTicker(watchEvery)
	defer again.Stop()
	known, last, sent := h.statusOf(call, service) != noService, false, ""
	for {
		status := noService
		if known {
			status = h.serverStatus(call)
		}
		if status != sent {
			if err := send(replyOf(call, healthStatus{status})); err != nil {
				return err
			}
			sent = status
		}
		if last {
			return yodel.Errorf(yodel.Unavailable, "the server shuts down")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-call.Draining():
			last = true
		case <-again.C:
		}
	}
}

func (h health) list(_ context.Context, call *yodel.Call) error {
	status := healthStatus{h.serverStatus(call)}
	all := healthStatuses{map[string]healthStatus{"": status}}
	for _, service := range h.server.Services() {
		all.Statuses[service] = status
	}
	call.Reply = replyOf(call, all)
	return nil
}

// asked returns the service that a HealthCheckRequest names.
func asked(call *yodel.Call) (string, error) {
	if call.Encoding().Name() != protobufCodec {
		var request struct {
			Service string `json:"service"`
		}
		err := call.DecodeInto(&request)
		return request.Service, err
	}
	body, err := call.Body()
	if err != nil {
		return "", err
	}
	service := ""
	err = protowire.EachField(body, func(number uint64, value []byte) error {
		if number == 1 {
			service = string(value)
		}
		return nil
	})
	if err != nil {
		return "", yodel.Errorf(yodel.InvalidArgument, "%s: %v", call.Method, err)
	}
	return service, nil
}

// protobufCodec is the name of the codec of Protocol Buffers.
const protobufCodec = "protobuf"

// A healthMessage is a reply.
type healthMessage interface{ appendTo(b []byte) []byte }

// replyOf returns m as the codec of the call takes it.
func replyOf(call *yodel.Call, m healthMessage) any {
	if call.Encoding().Name() == protobufCodec {
		return &yodel.Encoded{Body: m.appendTo(nil)}
	}
	return m
}

// A healthStatus is a HealthCheckResponse.
type healthStatus struct {
	Status string `json:"status"`
}

func (m healthStatus) appendTo(b []byte) []byte {
	return append(b, 1<<3, statusNumbers[m.Status])
}

// A healthStatuses is a HealthListResponse.
type healthStatuses struct {
	Statuses map[string]healthStatus `json:"statuses"`
}

func (m healthStatuses) appendTo(b []byte) []byte {
	for _, service := range slices.Sorted(maps.Keys(m.Statuses)) {
		entry := protowire.AppendField(nil, 1, []byte(service))
		b = protowire.AppendField(b, 1, protowire.AppendField(entry, 2, m.Statuses[service].appendTo(nil)))
	}
	return b
}

// watchEvery is the interval at which Watch looks for a change.
const watchEvery = time.Second

// watchTime is how long a drain waits until the watchers of a connection know of it.
const watchTime = time.Second

// A watches counts the open calls of Watch on a connection.
type watches struct {
	mu   sync.Mutex
	open int
	none chan struct{} // closed when open becomes 0; nil without a waiter
}

// begin counts a call until the caller calls end.
func (w *watches) begin() (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.open--; w.open == 0 && w.none != nil {
			close(w.none)
			w.none = nil
		}
	}
}

// wait waits until no call is open, but no longer than watchTime, because a service that replaces
// this one may not end its calls.
func (w *watches) wait() {
	w.mu.Lock()
	if w.open == 0 {
		w.mu.Unlock()
		return
	}
	none := make(chan struct{})
	w.none = none
	w.mu.Unlock()
	late := time.NewTimer(watchTime)
	defer late.Stop()
	select {
	case <-none:
	case <-late.C:
	}
}
