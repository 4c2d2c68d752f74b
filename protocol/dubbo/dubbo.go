// SPDX-License-Identifier: Apache-2.0

// Package dubbo connects yodel with programs that use Apache Dubbo. Protocol lets unchanged
// consumers call a yodel server with the protocol dubbo, which is also called Dubbo 2, on the port
// on which it serves yodel's own clients. Wire lets a yodel client call unchanged providers.
//
//	server := yodel.NewServer(&yodel.ServerOptions{
//		Codecs:    []yodel.Codec{hessian2.Codec}, // of package codec/hessian2
//		Protocols: []yodel.Protocol{dubbo.Protocol},
//	})
//	err := server.RegisterName("com.acme.Greeter", Greeter{})
//
// The protocol triple of Dubbo is gRPC: use packages protocol/http and protocol/grpc for it.
//
// # Methods
//
// A service has the name of its Java interface. The method sayHello of com.acme.Greeter calls the
// yodel method com.acme.Greeter.sayHello, or com.acme.Greeter.SayHello if there is no sayHello. The
// version and the group of the service are metadata: a yodel server has one implementation of a
// service. Java distinguishes methods of one name by the types of their parameters. Such methods
// call the same yodel method.
//
// A yodel method with one argument takes the only parameter of the Java method. A yodel method with
// several arguments, as func(ctx context.Context, a, b int32) (int32, error), takes as many
// parameters, and one with none takes none. A call with another number of parameters fails. A
// method with several results cannot be called, because Java has only one. A call that expects no
// reply is executed as a yodel.Call with OneWay. Generic calls ($invoke) and $echo are served. The
// reply of a generic call is encoded as that of any other.
//
// # Metadata
//
// Attachments are metadata in both directions. The attachment timeout is the deadline of the call.
// The attachments path, interface and dubbo, which repeat other parts of the request, are left out.
// The header and the trailer of a reply are its attachments. An attachment that is a number or a
// boolean becomes its text. A call with an attachment of any other type fails. The other fields of
// a call travel as idempotency-key, traceparent and tracestate, which a consumer may write in any
// case, and as yodel-tenant, yodel-key, yodel-criticality, yodel-budget, yodel-attempt and
// yodel-explain. Keys that begin with "yodel-" are reserved, except those of middleware in this
// repository, such as "yodel-fallback". A call of a yodel client that has a reserved key in its
// Metadata fails before it is sent. A reply is sent without it: see yodel.Served.LeftOut. A
// request may have any key: the server takes a key that it does not know as metadata.
//
// # Errors
//
// An error is a java.lang.RuntimeException for the consumer. For a handler's error without a code,
// its message is the unchanged text. For any other error, it is the code, the text and the ID. Some
// calls are answered with a status of Dubbo instead of an exception, as providers of Java do. The
// consumer may then try another provider. A call whose deadline has passed gets the status 31
// (SERVER_TIMEOUT). A call that the server did not execute gets 60 (SERVICE_NOT_FOUND) if there is
// no such method, 40 (BAD_REQUEST) if the arguments cannot be decoded, and otherwise 100
// (SERVER_THREADPOOL_EXHAUSTED_ERROR). The attachments of an exception have the code, the ID and
// RetryAfter for clients that use yodel. Details of errors do not travel.
//
// # Limits
//
// Encoded attachments have at most twice Limits.MaxMetadata, and 16 bytes for each of
// Limits.MaxPairs. Before middleware has passed a call, the server checks its arguments without
// keeping anything of them. So attachments cannot refer to classes, lists, maps and objects of the
// arguments. The tables that a request makes the server hold while it reads the arguments count as
// memory of the client. A request defines at most 65,536 classes.
//
// The only serialization is Hessian 2. A client that uses another one gets an error. The protocol
// has no streams and no attachments of yodel, and a client cannot cancel a call. When the server
// shuts down, it sends Dubbo's event READONLY, and consumers use other providers.
package dubbo

import (
	"context"
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/methodname"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// Protocol serves clients of Dubbo. Its name is "dubbo". The server needs the codec "hessian2".
var Protocol yodel.Protocol = protocol{}

type protocol struct{}

// codecName is the name of the codec for Hessian 2.
const codecName = "hessian2"

// Name implements yodel.Protocol.
func (protocol) Name() string { return "dubbo" }

// Codecs names the codec that the protocol needs: see yodel.Protocol.
func (protocol) Codecs() []string { return []string{codecName} }

// Match implements yodel.Protocol. A connection begins with a request.
func (protocol) Match(first []byte) (ok, more bool) {
	for i, c := range first {
		switch i {
		case 0, 1:
			if c != magic[i] {
				return false, false
			}
		default:
			return c&request != 0, false
		}
	}
	return false, true
}

// Serve implements yodel.Protocol.
func (protocol) Serve(_ context.Context, s *yodel.Session) error {
	c := &conn{
		Session: s, limits: s.Limits(), replies: pipelined.NewReplies(s), codec: s.Codec(codecName),
		frames: frameReader{s.Reader}, methods: methodname.NewFinder(s),
	}
	if c.codec == nil {
		return fmt.Errorf("the client speaks Dubbo: add the codec %q to ServerOptions.Codecs", codecName)
	}
	ended := make(chan struct{})
	defer close(ended)
	s.Go(func() { c.announceEnd(ended) })
	return s.Loop(c.next, c.replies.Flush)
}

// announceEnd tells the client to use other servers when this one begins to shut down.
func (c *conn) announceEnd(ended <-chan struct{}) {
	select {
	case <-c.Draining():
		h := head{flags: request | event | hessian2}
		c.replies.Send(h.append(nil, len(readOnly)), []byte(readOnly))
	case <-ended:
	}
}

var errResponse = errors.New("the client sent a response")
