// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/hessian"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// WireOptions adapts the protocol of a client.
type WireOptions struct {
	// Parameters has the types of the parameters of methods, by the names of the methods, as
	// descriptors of the JVM: "Ljava/lang/Long;[I" are a Long and an int[]. Without an entry, the
	// types are those that stand for the Go types of the arguments.
	Parameters map[string]string
}

// Wire returns a Wire that calls providers of Dubbo, for ClientOptions.Wires. Its name is "dubbo":
//
//	client := yodel.NewClient(discovery.Static("dubbo://10.0.0.7:20880"), &yodel.ClientOptions{
//		Codec: hessian2.Codec, // of package codec/hessian2
//		Wires: []yodel.Wire{dubbo.Wire(hessian2.Codec, nil)},
//	})
//	var greeting string
//	err := client.Call(ctx, "com.acme.Greeter.sayHello", yodel.Values{"Ada"}, yodel.Values{&greeting})
//
// Nil means the default WireOptions. Wire panics if the codec is not "hessian2", or if Parameters
// has something else than descriptors.
//
// The method of a call is the Java interface, a dot and the Java method. Values become the
// parameters, in their order. A single message becomes the only parameter. A message without fields
// is sent as no parameters. The result is decoded into the reply, or into the only one of its
// Values. It may be null, which leaves the zero value.
//
// Java finds a method by the types of its parameters: see package codec/hessian2 for the types of
// Go that stand for them. A number or a bool stands for the primitive type, and a pointer to one
// for its class. A slice is a List, a []byte is a byte[], and a map is a Map. A struct needs the
// method JavaClassName. WireOptions.Parameters has the types of methods for which this is wrong.
//
// The version and the group of the service are those of the instance, unless the metadata of the
// call has the keys version or group. The deadline of the call is the attachment timeout, after
// which a provider of Dubbo gives no answer. All other metadata are attachments. The attachments of
// a reply are the trailer of the call. A call with a stream, an attachment of yodel or several
// results fails before it is sent.
//
// An exception becomes an error with the code Unknown and the text of the exception. Its class is a
// part of the text, unless it is RuntimeException. Error.Details has the encoded exception with the
// type "dubbo.exception". A server that uses yodel sends the code and the ID too. A status that is
// not OK becomes an error with the code that is next to it.
func Wire(codec yodel.Codec, o *WireOptions) yodel.Wire {
	if o == nil {
		o = &WireOptions{}
	}
	if codec == nil || codec.Name() != codecName {
		panic(fmt.Sprintf("dubbo: Wire needs the codec %q", codecName))
	}
	for method, types := range o.Parameters {
		if _, err := countTypes(types); err != nil {
			panic(fmt.Sprintf("dubbo: the parameters of %s: %v", method, err))
		}
	}
	return &wire{*o, codec}
}

type wire struct {
	WireOptions
	codec yodel.Codec
}

// Name implements yodel.Wire.
func (*wire) Name() string { return "dubbo" }

// Connect implements yodel.Wire.
func (w *wire) Connect(_ context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	l := &link{Link: pipelined.NewLink[*reply](nc, ep.Addr(), ep.Client().Limits(), ep), wire: w, instance: ep.Instance}
	l.frames = frameReader{l.Reader}
	l.Start(l.next, func() { l.sendEvent(request|twoWay|event|hessian2, 0, nil) }) //nolint:contextcheck // it ends with the connection
	return l, nil
}

var (
	errReadOnly = errors.New("the server takes no further requests")
	errOverfull = errors.New("too many requests wait to be sent")
)

// sendEvent sends an event. A request gets a new number in place of number. It does not wait: if
// too many requests wait to be sent, it sends nothing.
func (l *link) sendEvent(flags byte, number uint64, body []byte) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errOverfull)
	if body == nil {
		body = hessian.AppendNull(nil)
	}
	_, _ = l.Send(ctx, false, func(next uint64) ([]byte, error) { // without an answer, the connection ends
		h := head{flags: flags, number: number, status: statusOK}
		if h.is(request) {
			h.number, h.status = next, 0
		}
		return append(h.append(nil, len(body)), body...), nil
	})
}
