// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
)

// callOptions are the flags of call.
type callOptions struct {
	wire     string
	kind     string
	explain  bool
	metadata []string
	deadline time.Duration
	repeat   int
	version  string
}

func (a *app) callCommand() *cobra.Command {
	var o callOptions
	c := command(writes, &cobra.Command{
		Use:     "call SERVICE/METHOD [JSON | @FILE | -]",
		Aliases: []string{"req", "curl"},
		Short:   "Call a method",
		Long: "The request is JSON: an argument, a file, or the standard input. Without it, the request is {}. A method\n" +
			"with several arguments takes an array. Methods of the kinds upload and duplex take any number of messages\n" +
			"one after the other, and feed and duplex print each message on a line.\n" +
			"On a terminal, a line about the call follows on stderr; -v prints it elsewhere too.",
		Example: "  yodel call shop.Cart/Add '{\"sku\":\"tea\",\"qty\":2}'\n  yodel call shop.Cart/Add @request.json --wire grpc\n" +
			"  yodel call shop.Cart/Add --explain\n  yodel --at 127.0.0.1:8972 call shop.Cart/Get",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			body := ""
			if len(args) == 2 {
				body = args[1]
			}
			return a.call(c.Context(), args[0], body, &o)
		},
		ValidArgsFunction: a.completeMethod,
	})
	f := c.Flags()
	f.StringVar(&o.wire, "wire", "", "`PROTOCOL` of the call: native, grpc, grpc-web, connect, http, jsonrpc or rpcx (default: as the registry says)")
	f.StringVar(&o.kind, "kind", "", "kind of the method, if the server does not describe it: unary, feed, upload or duplex")
	f.BoolVar(&o.explain, "explain", false, "say where the call would go, and send nothing")
	f.StringArrayVarP(&o.metadata, "metadata", "m", nil, "`KEY=VALUE` that travels with the request")
	f.DurationVarP(&o.deadline, "deadline", "d", 0, "how long the call may take (default --timeout for unary methods, none for streams)")
	f.IntVar(&o.repeat, "repeat", 1, "make the call `N` times")
	f.StringVar(&o.version, "version", "", "call only instances of this version")
	a.complete(c, "wire", append([]string{"native"}, slices.Sorted(maps.Keys(wires()))...))
	a.complete(c, "kind", []string{"unary", "feed", "upload", "duplex"})
	return c
}

// wires returns the protocols of calls, except for yodel's own.
func wires() map[string]yodel.Wire {
	return map[string]yodel.Wire{
		"grpc": grpc.Wire, "grpc-web": grpc.Web, "connect": connect.Wire(nil), "http": connect.Wire(&connect.Options{HTTP1: true}),
		"jsonrpc": jsonrpc.Wire(yodel.JSON), "rpcx": rpcx.Wire(yodel.JSON),
	}
}

// typed are protocols whose messages the command cannot make of JSON.
var typed = []string{"netrpc", "thrift", "dubbo"}

// A speaking is a resolver with those instances of another one that keep selects. They speak one
// protocol only if wire is set.
type speaking struct {
	of   discovery.Resolver
	wire string
	keep func(discovery.Instance) bool
}

// Describe implements the optional method of discovery.Resolver.
func (s speaking) Describe() yodel.Description { return yodel.Description{}.Over(s.of) }

// Watch implements discovery.Resolver.
func (s speaking) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	return s.of.Watch(ctx, func(all []discovery.Instance) {
		var instances []discovery.Instance
		for _, in := range all {
			if s.keep != nil && !s.keep(in) {
				continue
			}
			if s.wire != "" {
				in.Protocols = []string{s.wire}
			}
			instances = append(instances, in)
		}
		update(instances)
	})
}

// dial returns a client for a service.
func (a *app) dial(t *target, service string, o *callOptions) (*yodel.Client, error) {
	opts := *t.client
	if opts.Codec == nil {
		opts.Codec = yodel.JSON
	}
	var resolver discovery.Resolver = discovery.Static(t.addrs...)
	if t.registry != nil {
		resolver = fleet.Bounded(t.source.Service(service))
	}
	s := speaking{of: resolver}
	if o.version != "" {
		s.keep = func(in discovery.Instance) bool { return in.Version == o.version }
	}
	switch wire := wires()[o.wire]; {
	case o.wire == "" || o.wire == "native":
		if o.wire == "" {
			opts.Wires = slices.Collect(maps.Values(wires()))
		} else {
			s.wire = "yodel"
		}
	case wire != nil:
		opts.Wires, s.wire = []yodel.Wire{wire}, wire.Name()
	case slices.Contains(typed, o.wire):
		return nil, faultf(exitUsage, "calls over %s need types of Go, which a request in JSON does not have", o.wire)
	default:
		f := faultf(exitUsage, "there is no wire %q", o.wire)
		if near := similar(o.wire, slices.Sorted(maps.Keys(wires()))); near != "" {
			f.addf("did you mean", "%s", near)
		}
		return nil, f.with("wires", "native, %s", strings.Join(slices.Sorted(maps.Keys(wires())), ", "))
	}
	if s.wire != "" || s.keep != nil {
		resolver = s
	}
	return yodel.NewClient(resolver, &opts), nil
}

func (a *app) call(ctx context.Context, name, body string, o *callOptions) error {
	if kinds := []string{"", "unary", "feed", "upload", "duplex"}; !slices.Contains(kinds, o.kind) {
		return faultf(exitUsage, "there is no kind %q", o.kind).with("kinds", "%s", strings.Join(kinds[1:], ", "))
	}
	service, last, ok := split(name)
	if !ok {
		return faultf(exitUsage, "%q is no method", name).with("try", "yodel call SERVICE/METHOD, for example shop.Cart/Add")
	}
	t, err := a.openTarget(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = t.close() }()
	metadata := make(yodel.Metadata)
	for _, pair := range o.metadata {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return faultf(exitUsage, "the metadata %q is not KEY=VALUE", pair)
		}
		metadata[key] = value
	}
	client, err := a.dial(t, service, o)
	if err != nil {
		return err
	}
	defer client.Close()
	if o.explain {
		return a.explainCall(ctx, t, service, last, metadata, o)
	}
	m, err := a.method(ctx, client, service, last, o)
	if err != nil {
		return a.enrich(ctx, t, service, last, err)
	}
	input, done, err := a.body(ctx, body)
	if err != nil {
		return err
	}
	defer done()
	var whole []byte // the input, if it is needed several times
	if o.repeat > 1 {
		if whole, err = io.ReadAll(io.LimitReader(input, maxMessage)); err != nil {
			return faultf(exitUsage, "the request cannot be read: %v", err)
		}
	}
	for range max(o.repeat, 1) {
		if o.repeat > 1 {
			input = bytes.NewReader(whole)
		}
		call := &yodel.Call{Method: m.Name, Explain: true}
		if len(metadata) > 0 {
			call.Metadata = metadata
		}
		if limit := cmp.Or(o.deadline, a.o.timeout); o.deadline > 0 || m.Kind == "" {
			call.Deadline = time.Now().Add(limit)
		}
		if err := a.send(ctx, client, m, call, input); err != nil {
			return a.enrich(ctx, t, service, last, err)
		}
	}
	return nil
}

// method asks a server for the description of a method. If the server does not describe itself, the
// method is of the kind that the flag says.
func (a *app) method(ctx context.Context, client *yodel.Client, service, last string, o *callOptions) (*introspect.Method, error) {
	ctx, cancel := a.limited(ctx)
	defer cancel()
	info, err := inspect.Info.Call(ctx, client, &inspect.Empty{})
	if err != nil {
		e, ok := errors.AsType[*yodel.Error](err)
		if !ok || e.OfClient() || e.AboutConnection() {
			return nil, err
		}
		return &introspect.Method{Name: service + "." + last, Kind: strings.TrimPrefix(o.kind, "unary")}, nil
	}
	s := &fleet.Service{Name: service}
	for i := range info.Methods {
		if fleet.ServiceOf(info.Methods[i].Name) == service {
			s.Methods = append(s.Methods, fleet.Method{Method: info.Methods[i]})
		}
	}
	if len(s.Methods) > 0 {
		m, err := findMethod(s, last)
		if err != nil {
			return nil, err
		}
		return &m.Method, nil
	}
	known := fleet.Services(info)
	if whole := service + "." + last; slices.Contains(known, whole) {
		return nil, notAMethod(whole)
	}
	f := faultf(exitFailed, "unimplemented: the server has no service %s [YDL2001]", service)
	if near := similar(service, known); near != "" {
		f.addf("did you mean", "%s", near)
	}
	return nil, f.with("services", "%s", shorten(known))
}

// enrich adds to the error of a service without instances what the registry knows.
func (a *app) enrich(ctx context.Context, t *target, service, last string, err error) error {
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok || !e.OfClient() || t.registry == nil {
		return err
	}
	known, listed := t.source.Services(ctx)
	if whole := service + "." + last; slices.Contains(known, whole) {
		return notAMethod(whole)
	}
	if listed != nil || slices.Contains(known, service) {
		return err
	}
	f := faultf(exitFailed, "not_found: there is no service %s in %s", service, t.name)
	if near := similar(service, known); near != "" {
		f.addf("did you mean", "%s", near)
	}
	if len(known) > 0 {
		f.addf("services", "%s     (yodel ls)", shorten(known))
	}
	return f
}

// notAMethod is the fault of a call that names a service only.
func notAMethod(service string) error {
	return faultf(exitUsage, "%s is a service: name one of its methods too", service).with("methods", "yodel ls %s", service)
}

// body returns the reader of a request.
func (a *app) body(ctx context.Context, arg string) (r io.Reader, done func(), err error) {
	switch {
	case arg == "":
		return strings.NewReader(""), func() {}, nil
	case arg == "-":
		return a.stdin(ctx), func() {}, nil
	case strings.HasPrefix(arg, "@"):
		f, err := os.Open(arg[1:])
		if err != nil {
			return nil, nil, faultf(exitUsage, "%v", err)
		}
		return f, func() { f.Close() }, nil
	}
	return strings.NewReader(arg), func() {}, nil
}

// maxMessage limits a message in the input. Servers have limits of their own.
const maxMessage = 64 << 20

// messages returns the messages in the input one by one. It returns io.EOF after the last one.
func messages(r io.Reader) func() (*json.RawMessage, error) {
	decoder := json.NewDecoder(r)
	return func() (*json.RawMessage, error) {
		var m json.RawMessage
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
			return nil, err
		} else if err != nil {
			return nil, faultf(exitUsage, "the request is no JSON: %v", err)
		}
		if len(m) > maxMessage {
			return nil, faultf(exitUsage, "a message has more than %d bytes", maxMessage)
		}
		return &m, nil
	}
}

// send makes a call of any kind and prints what it returns.
func (a *app) send(ctx context.Context, client *yodel.Client, m *introspect.Method, call *yodel.Call, input io.Reader) error {
	began := time.Now()
	var err error
	switch next := messagesOf(m, input); m.Kind {
	case "feed":
		err = a.feed(ctx, client, m, call, next)
	case "upload":
		var reply *json.RawMessage
		reply, err = yodel.Upload[json.RawMessage, json.RawMessage](m.Name).Do(ctx, client, call, func(send yodel.Send[json.RawMessage]) error {
			return pass(next, send)
		})
		if err == nil {
			a.printReply(*reply)
		}
	case "duplex":
		err = a.duplex(ctx, client, m, call, next)
	default:
		err = a.unary(ctx, client, m, call, next)
	}
	if a.errTTY || a.o.verbose {
		a.sayf("%s\n", outcome(call, m, time.Since(began), err))
	}
	return err
}

// pass sends all messages.
func pass(next func() (*json.RawMessage, error), send yodel.Send[json.RawMessage]) error {
	for {
		m, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = send(m)
		}
		if err != nil {
			return err
		}
	}
}

// one returns the only message of the input, {} if there is none.
func one(next func() (*json.RawMessage, error)) (*json.RawMessage, error) {
	m, err := next()
	if errors.Is(err, io.EOF) {
		empty := json.RawMessage("{}")
		return &empty, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := next(); !errors.Is(err, io.EOF) {
		return nil, faultf(exitUsage, "there is something after the request; the method takes one message")
	}
	return m, nil
}

func (a *app) unary(ctx context.Context, client *yodel.Client, m *introspect.Method, call *yodel.Call, next func() (*json.RawMessage, error)) error {
	in, err := one(next)
	if err != nil {
		return err
	}
	var reply json.RawMessage
	call.Args, call.Reply = in, &reply
	if m.Values {
		if call.Args, err = values(m, *in); err != nil {
			return err
		}
		replies := make(yodel.Values, len(m.Results))
		for i := range replies {
			replies[i] = new(json.RawMessage)
		}
		call.Reply = replies
		if err := client.Do(ctx, call); err != nil {
			return err
		}
		a.printReply(joined(replies))
		return nil
	}
	if err := client.Do(ctx, call); err != nil {
		return err
	}
	a.printReply(reply)
	return nil
}

// argumentsOf returns the arguments in a request for a method with Values: an array of them, or the
// only one. The array around the only argument may be left out, and must be if an array can be the
// argument itself.
func argumentsOf(m *introspect.Method, in json.RawMessage) ([]json.RawMessage, error) {
	var list []json.RawMessage
	whole := json.Unmarshal(in, &list) != nil || len(list) != len(m.Args)
	switch n := len(m.Args); {
	case n == 1 && (whole || slices.Contains([]string{"array", "bytes", "any"}, m.Args[0].Kind)):
		return []json.RawMessage{in}, nil
	case n == 0:
		return nil, nil
	case whole:
		return nil, faultf(exitUsage, "the method takes %d arguments: give an array of them", n)
	}
	return list, nil
}

// values returns the arguments of a method with Values.
func values(m *introspect.Method, in json.RawMessage) (yodel.Values, error) {
	list, err := argumentsOf(m, in)
	if err != nil {
		return nil, err
	}
	args := make(yodel.Values, len(list))
	for i := range list {
		args[i] = list[i]
	}
	return args, nil
}

// joined returns the results of a method: the only one, or an array of them.
func joined(replies yodel.Values) json.RawMessage {
	var parts [][]byte
	for _, r := range replies {
		if m, ok := r.(*json.RawMessage); ok {
			parts = append(parts, *m)
		}
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return slices.Concat([]byte("["), bytes.Join(parts, []byte(",")), []byte("]"))
}

func (a *app) feed(ctx context.Context, client *yodel.Client, m *introspect.Method, call *yodel.Call, next func() (*json.RawMessage, error)) error {
	in, err := one(next)
	if err != nil {
		return err
	}
	for msg, err := range yodel.Feed[json.RawMessage, json.RawMessage](m.Name).Do(ctx, client, call, in) {
		if err != nil {
			return err
		}
		a.printReply(*msg)
	}
	return nil
}

func (a *app) duplex(ctx context.Context, client *yodel.Client, m *introspect.Method, call *yodel.Call, next func() (*json.RawMessage, error)) error {
	return yodel.Duplex[json.RawMessage, json.RawMessage](m.Name).Do(ctx, client, call, func(recv yodel.Recv[json.RawMessage], send yodel.Send[json.RawMessage]) error {
		sent := make(chan error, 1)
		go func() {
			err := pass(next, send)
			if err == nil {
				err = send.End()
			}
			sent <- err
		}()
		for msg, err := range recv {
			if err != nil {
				return err
			}
			a.printReply(*msg)
		}
		select { // input that has not ended must not keep a call that has
		case err := <-sent:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		default:
			return nil
		}
	})
}

// printReply prints a message on one line. The format yaml prints it as a document.
func (a *app) printReply(reply json.RawMessage) {
	switch a.o.output {
	case "yaml":
		if b, err := asYAML(reply); err == nil {
			a.printEscaped(b)
			return
		}
	case "json", "ndjson":
		var b bytes.Buffer
		if json.Compact(&b, reply) == nil {
			a.printEscaped(append(b.Bytes(), '\n'))
			return
		}
	}
	a.printEscaped([]byte(oneLine(reply) + "\n"))
}

// outcome describes a call that has ended in one line.
func outcome(call *yodel.Call, m *introspect.Method, took time.Duration, err error) string {
	said := "ok"
	if err != nil {
		said = yodel.CodeOf(err).String()
	}
	said += "  " + brief(took)
	r := call.Report()
	if r == nil || len(r.Attempts) == 0 {
		return said
	}
	last := r.Attempts[len(r.Attempts)-1]
	said += fmt.Sprintf("  %s@%s", fleet.ServiceOf(m.Name), last.Addr)
	if call.Endpoint != nil && call.Endpoint.Instance().Version != "" {
		said += fmt.Sprintf(" (%s)", call.Endpoint.Instance().Version)
	}
	said += fmt.Sprintf("  attempt %d", len(r.Attempts)+r.MoreAttempts)
	part := func(name string, d time.Duration) {
		if d > 0 {
			said += fmt.Sprintf(" %s %.2f", name, d.Seconds()*1e3)
		}
	}
	said += " "
	part("pick", last.Began)
	part("connect", last.Connecting)
	part("network", last.Network)
	part("queue", last.Queue)
	part("handler", last.Handler)
	return strings.TrimRight(said, " ")
}
