// SPDX-License-Identifier: Apache-2.0

// Command curl serves the methods that docs/curl.md calls with curl:
//
//	go run ./examples/curl
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// An Order is what a customer has ordered.
type Order struct {
	ID    string   `json:"id,omitempty"`
	Items []string `json:"items,omitempty"`
	Note  string   `json:"note,omitempty"`
}

// A Status is where an order is.
type Status struct {
	Status string `json:"status"`
}

// A Photo is a file that a customer sends with a form.
type Photo struct {
	ID   string `json:"id"`
	Data []byte `json:"data"`
}

// A Receipt says what the server has received.
type Receipt struct {
	Bytes int `json:"bytes"`
}

// A Caller is what a server knows of a caller from its headers.
type Caller struct {
	Tenant      string `json:"tenant,omitempty"`
	Criticality int    `json:"criticality,omitempty"`
	Color       string `json:"color,omitempty"`
	Trace       string `json:"trace,omitempty"`
	TimeLeft    bool   `json:"timeLeft,omitempty"`
}

// The methods of the service.
const (
	Get    yodel.Method[Order, Order]   = "shop.Orders.Get"
	Place  yodel.Method[Order, Order]   = "shop.Orders.Place"
	Change yodel.Method[Order, Order]   = "shop.Orders.Change"
	Refund yodel.Method[Order, Order]   = "shop.Orders.Refund"
	Report yodel.Method[Order, Order]   = "shop.Orders.Report"
	Attach yodel.Method[Photo, Receipt] = "shop.Orders.Attach"
	Watch  yodel.Feed[Order, Status]    = "shop.Orders.Watch"
	WhoAmI yodel.Method[Caller, Caller] = "shop.Orders.WhoAmI"
)

func main() {
	addr := flag.String("addr", "localhost:8972", "the address to listen at")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := newServer().ListenAndServe(ctx, *addr)
	if stop(); err != nil {
		log.Fatal(err)
	}
}

func newServer() *yodel.Server {
	// region server
	s := yodel.NewServer(&yodel.ServerOptions{
		Compressors: []compress.Compressor{gzip.Compressor},
		Keys:        once.With(nil), // for Idempotency-Key
		Protocols: []yodel.Protocol{http.New(&http.Options{
			JSONRPC: "/rpc",
			OpenAPI: "/openapi.json",
			Forms:   true,
			Routes: []http.Route{
				{Pattern: "GET /v1/orders/{id}", Method: string(Get)},
				{Pattern: "PATCH /v1/orders/{id}", Method: string(Change)},
				{Pattern: "GET /v1/orders/{id}/events", Method: string(Watch)},
			},
		})},
	})
	// endregion server
	o := &orders{saved: map[string]*Order{"1": {ID: "1", Items: []string{"tea", "milk"}}}}
	Get.Handle(s, o.get)
	Place.Handle(s, o.place)
	Change.Handle(s, o.change)
	Refund.Handle(s, refund)
	Report.Handle(s, report)
	Attach.Handle(s, attach)
	Watch.Handle(s, watch)
	WhoAmI.Handle(s, whoAmI)
	s.MarkReadOnly(string(Get), string(Watch))
	return s
}

// orders keeps the orders.
type orders struct {
	mu    sync.Mutex
	saved map[string]*Order
}

func (o *orders) get(_ context.Context, in *Order) (*Order, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	order := o.saved[in.ID]
	if order == nil {
		return nil, yodel.Errorf(yodel.NotFound, "there is no order %q", in.ID)
	}
	return order, nil
}

func (o *orders) place(_ context.Context, in *Order) (*Order, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	order := *in
	order.ID = fmt.Sprint(len(o.saved) + 1)
	o.saved[order.ID] = &order
	return &order, nil
}

func (o *orders) change(_ context.Context, in *Order) (*Order, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	order := o.saved[in.ID]
	if order == nil {
		return nil, yodel.Errorf(yodel.NotFound, "there is no order %q", in.ID)
	}
	changed := *order
	changed.Note = in.Note
	o.saved[in.ID] = &changed
	return &changed, nil
}

// refund cannot be done now.
func refund(context.Context, *Order) (*Order, error) {
	return nil, &yodel.Error{Code: yodel.Unavailable, Message: "the bank does not answer", RetryAfter: 30 * time.Second}
}

// report takes a minute.
func report(ctx context.Context, in *Order) (*Order, error) {
	select {
	case <-time.After(time.Minute):
		return in, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func attach(_ context.Context, in *Photo) (*Receipt, error) {
	return &Receipt{Bytes: len(in.Data)}, nil
}

func watch(_ context.Context, _ *Order, send yodel.Send[Status]) error {
	for _, status := range []string{"packed", "on its way", "delivered"} {
		if err := send(&Status{status}); err != nil {
			return err
		}
	}
	return nil
}

func whoAmI(ctx context.Context, _ *Caller) (*Caller, error) {
	call := yodel.CallFrom(ctx)
	trace, _, _ := strings.Cut(call.Trace, " ")
	call.SetHeader(yodel.Metadata{"served-by": "desk 3"})
	call.Trailer = yodel.Metadata{"cost": "2"}
	return &Caller{Tenant: call.Tenant, Criticality: call.Criticality, Color: call.Metadata["color"], Trace: trace, TimeLeft: !call.Deadline.IsZero()}, nil
}
