// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/rules"
)

// This file is the demonstration of yodel dev: a shop of three services with five instances, of
// which one fails and one is slow, and a client that calls them.

// The messages of the shop.
type (
	AddRequest struct {
		SKU string `json:"sku"`
		Qty int32  `json:"qty"`
	}
	Line struct {
		SKU string `json:"sku"`
		Qty int32  `json:"qty"`
	}
	CartReply struct {
		Total int32  `json:"total"`
		Lines []Line `json:"lines"`
	}
	ChargeRequest struct {
		Cents int64 `json:"cents"`
	}
	ChargeReply struct {
		Receipt string `json:"receipt"`
	}
	Item struct {
		SKU  string `json:"sku"`
		Left int32  `json:"left"`
	}
	WatchRequest struct {
		SKU   string `json:"sku"`
		Times int    `json:"times"`
	}
	Imported struct {
		Items int   `json:"items"`
		Total int64 `json:"total"`
	}
	empty = struct{}
)

// The methods of the shop.
const (
	cartAdd      yodel.Method[AddRequest, CartReply]      = "shop.Cart.Add"
	cartGet      yodel.Method[empty, CartReply]           = "shop.Cart.Get"
	cartClear    yodel.Method[empty, CartReply]           = "shop.Cart.Clear"
	cartCheckout yodel.Method[empty, ChargeReply]         = "shop.Cart.Checkout"
	payCharge    yodel.Method[ChargeRequest, ChargeReply] = "shop.Pay.Charge"
	stockReserve yodel.Method[Line, Item]                 = "shop.Stock.Reserve"
	stockWatch   yodel.Feed[WatchRequest, Item]           = "shop.Stock.Watch"
	stockImport  yodel.Upload[Item, Imported]             = "shop.Stock.Import"
	stockCount   yodel.Duplex[Item, Item]                 = "shop.Stock.Count"
)

// A shop is the servers and clients of the demonstration.
type shop struct {
	folder string // of the registry

	mu    sync.Mutex
	carts map[string][]Line // by the name of the shopper

	pay, stock *yodel.Client // of the carts
}

// A member is an instance of the shop.
type member struct {
	version string
	zone    string
	methods func(s *yodel.Server)
}

// members returns the five instances.
func (p *shop) members() []member {
	return []member{
		{"v1.0.0", "a", func(s *yodel.Server) { p.cart(s, 0) }}, {"v1.1.0", "b", func(s *yodel.Server) { p.cart(s, slowness) }},
		{"v1.0.0", "a", func(s *yodel.Server) { p.till(s, false) }}, {"v1.0.0", "b", func(s *yodel.Server) { p.till(s, true) }},
		{"v1.0.0", "a", p.store},
	}
}

// run runs the shop until ctx ends. It calls ready when all servers listen.
func (p *shop) run(ctx context.Context, ready func()) error {
	p.carts = make(map[string][]Line)
	p.pay, p.stock = p.client("shop.Pay", "shop.Cart"), p.client("shop.Stock", "shop.Cart")
	web := p.client("shop.Cart", "web")
	defer p.pay.Close()
	defer p.stock.Close()
	defer web.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	members := p.members()
	failed := make(chan error, len(members))
	var wg sync.WaitGroup
	for _, m := range members {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			cancel()
			wg.Wait()
			return err
		}
		s := p.server(m)
		wg.Go(func() {
			if err := s.Serve(ctx, l); err != nil && !errors.Is(err, yodel.ErrServerClosed) {
				failed <- err
				cancel()
			}
		})
	}
	ready()
	wg.Go(func() { p.traffic(ctx, web) })
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// silence drops the log of the demonstration, because yodel dev prints what happens.
func silence() *slog.Logger { return slog.New(slog.DiscardHandler) }

// server returns the server of a member.
func (p *shop) server(m member) *yodel.Server {
	s := yodel.NewServer(&yodel.ServerOptions{
		Diagnostics: true, Logger: silence(), Instance: discovery.Instance{Version: m.version, Zone: m.zone},
		Protocols:    []yodel.Protocol{http.New(&http.Options{OpenAPI: "/openapi.json"}), jsonrpc.Protocol, rpcx.Protocol},
		Registrars:   []discovery.Registrar{rules.With(file.New(p.folder, nil), &rules.Options{Logger: silence()})},
		DrainTimeout: 2 * time.Second, AnnounceEvery: 5 * time.Second,
	})
	m.methods(s)
	return s
}

// client returns a client of a service, under a name.
func (p *shop) client(service, name string) *yodel.Client {
	o := &yodel.ClientOptions{Timeout: time.Second, Logger: silence(), Name: name}
	r := rules.With(file.New(p.folder, nil), &rules.Options{Caller: name, Logger: silence()})
	return yodel.NewClient(r.Service(service), recommended.Client(o))
}

// shopper returns the name of a cart.
func shopper(ctx context.Context) string { return yodel.CallFrom(ctx).Metadata["shopper"] }

// slowness is how much longer than the other the slow instance takes to check out. It is too little
// for clients to eject the instance.
const slowness = 6 * time.Millisecond

// cart registers the methods of shop.Cart. Checkout takes at least as long as slow.
func (p *shop) cart(s *yodel.Server, slow time.Duration) {
	reply := func(lines []Line) *CartReply {
		out := &CartReply{Lines: append([]Line{}, lines...)}
		for _, l := range lines {
			out.Total += l.Qty
		}
		return out
	}
	cartAdd.Handle(s, func(ctx context.Context, in *AddRequest) (*CartReply, error) {
		if in.Qty < 1 || in.Qty > 99 {
			return nil, yodel.Errorf(yodel.InvalidArgument, "qty is %d, and must be 1 to 99", in.Qty)
		}
		if _, err := stockReserve.Call(ctx, p.stock, &Line{in.SKU, in.Qty}); err != nil {
			return nil, err
		}
		name := shopper(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		lines := p.carts[name]
		if len(lines) >= 99 {
			return nil, yodel.Errorf(yodel.ResourceExhausted, "the cart is full")
		}
		p.carts[name] = append(lines, Line{in.SKU, in.Qty})
		return reply(p.carts[name]), nil
	})
	cartGet.Handle(s, func(ctx context.Context, _ *empty) (*CartReply, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return reply(p.carts[shopper(ctx)]), nil
	})
	cartClear.Handle(s, func(ctx context.Context, _ *empty) (*CartReply, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.carts, shopper(ctx))
		return reply(nil), nil
	})
	cartCheckout.Handle(s, func(ctx context.Context, _ *empty) (*ChargeReply, error) {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		receipt, err := payCharge.Call(ctx, p.pay, &ChargeRequest{Cents: 1250})
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.carts, shopper(ctx))
		return receipt, nil
	})
	s.MarkReadOnly("shop.Cart.Get")
	s.MarkIdempotent("shop.Cart.Get", "shop.Cart.Clear")
}

// till registers the methods of shop.Pay. A broken till fails most calls.
func (p *shop) till(s *yodel.Server, broken bool) {
	var mu sync.Mutex
	calls := 0
	payCharge.Handle(s, func(_ context.Context, in *ChargeRequest) (*ChargeReply, error) {
		mu.Lock()
		calls++
		n := calls
		mu.Unlock()
		if in.Cents <= 0 {
			return nil, yodel.Errorf(yodel.InvalidArgument, "cents is %d, and must be positive", in.Cents)
		}
		if broken && n%10 != 0 {
			return nil, yodel.Errorf(yodel.Internal, "the card reader is unplugged (this instance fails on purpose)")
		}
		return &ChargeReply{Receipt: "paid"}, nil
	})
}

// store registers the methods of shop.Stock: one of each kind.
func (p *shop) store(s *yodel.Server) {
	stockReserve.Handle(s, func(_ context.Context, in *Line) (*Item, error) { return &Item{in.SKU, 100 - in.Qty}, nil })
	stockWatch.Handle(s, func(ctx context.Context, in *WatchRequest, send yodel.Send[Item]) error {
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for i := 0; in.Times <= 0 || i < in.Times; i++ {
			if err := send(&Item{in.SKU, int32(100 - i%100)}); err != nil {
				return err
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	stockImport.Handle(s, func(_ context.Context, recv yodel.Recv[Item]) (*Imported, error) {
		out := new(Imported)
		for in, err := range recv {
			if err != nil {
				return nil, err
			}
			out.Items++
			out.Total += int64(in.Left)
		}
		return out, nil
	})
	stockCount.Handle(s, func(_ context.Context, recv yodel.Recv[Item], send yodel.Send[Item]) error {
		for in, err := range recv {
			if err != nil {
				return err
			}
			if err := send(&Item{in.SKU, in.Left + 1}); err != nil {
				return err
			}
		}
		return nil
	})
}

// traffic makes 24 calls a second to the carts, which make 16 more to the other services.
func (p *shop) traffic(ctx context.Context, web *yodel.Client) {
	ticker := time.NewTicker(time.Second / 8)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		call := func() *yodel.Call { return &yodel.Call{Metadata: yodel.Metadata{"shopper": "demo"}} }
		// Errors are what the demonstration is for: the statistics have them.
		_, _ = cartAdd.Do(ctx, web, call(), &AddRequest{"tea", 2})
		_, _ = cartGet.Do(ctx, web, call(), &empty{})
		_, _ = cartCheckout.Do(ctx, web, call(), &empty{})
	}
}
